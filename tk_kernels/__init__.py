"""TTT kernels: a folder per operator (ttt_linear, ttt_mlp) and shared code; see README.md."""

FORMS = ("dual", "primal")  # ttt_layer.md, "Three forms"
