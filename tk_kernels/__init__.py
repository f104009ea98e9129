"""TTT kernels: a folder per operator (ttt_linear, ttt_mlp) and shared code; see README.md."""

FORMS = ("dual", "primal")  # ttt_layer.md, "Three forms"
ROPE_THETA = 10000.0


def check_choice(name: str, value: object, supported: tuple[object, ...]) -> None:
    """Raise ValueError, naming the argument `name`, unless `value` is in `supported`."""
    if value not in supported:
        raise ValueError(f"{name} is {value!r}: supported are {', '.join(map(repr, supported))}")
