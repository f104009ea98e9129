"""How is a language model of this repository measured and checked? Shared by the adapters of its PyTorch models."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from bench import fairness
from bench.models.layers import mark_layers
from harness.case import Case
from harness.gate import Check, Verdict, argmax_disagreement, relative_error, total_variation
from harness.ranges import nvtx_range
from harness.system import Workload

STEPS = 16  # one call of generate is a whole mini-batch, the step that rewrites W included
GATE_BATCH, GATE_PROMPT, GATE_STEPS = 2, 37, 13  # past three mini-batch ends
# A prefill of so many tokens may be shorter than its launches from Python: those of a 1.3B model take 1 ms a layer,
# the work of 2,048 tokens half of that. Beyond it a graph would only hold memory.
LAUNCH_BOUND_TOKENS = 8192
# What the record of such a prefill says, by `replays_prefill`.
LAUNCHES = {
    True: "the prefill is replayed from a CUDA graph",
    False: "each kernel of the prefill is launched from Python",
}

# Relative error of the logits and total variation of the next token's probabilities against the reference. Rounding
# of 24 layers of bfloat16 activations reaches 2e-2; float32 against float64 stays far below 1e-4.
LIMITS = {"bfloat16": (5e-2, 2e-2), "float16": (2e-2, 1e-2), "float32": (1e-4, 1e-4)}


class LanguageModel:
    """An adapter (`harness.worker.System`) of a model with `init_state`, `prefill` and `generate_step`.

    A subclass says how to load its model; weights are random by seed, the same for the model and its reference.
    """

    gate_prompt = GATE_PROMPT
    # That a generate case has read before its steps; None where its state stands at the context.
    prompt_tokens: ClassVar[int | None] = 0
    replays_prefill: ClassVar[bool] = False  # a launch-bound one, from a CUDA graph, as an engine that serves it would

    def __init__(self) -> None:
        self._loaded: tuple[tuple[Any, ...], Any] | None = None
        self._verdict: Verdict | None = None

    def unavailable(self) -> str:
        """These run wherever torch does."""
        return ""

    def versions(self) -> dict[str, str]:
        """What the numbers depend on beyond torch, which the environment names already."""
        return {}

    def settings(self, case: Case) -> dict[str, str]:
        """What the record says of how this case is run."""
        return {}

    def load(self, case: Case) -> Any:
        """The model of the case, with random weights, on `device()` in the dtype of the case."""
        raise NotImplementedError

    def reference(self, model: Any, dtype: torch.dtype) -> Any:
        """The same function with the same weights in `dtype`; by default the same code."""
        reference = type(model)(model.config, device(), dtype)
        for name, weight in reference.weights().items():
            weight.copy_(model.weights()[name])
        return reference

    def build(self, case: Case) -> Workload:
        """The workload of one case: a forward, a mini-batch of generate steps, or a request."""
        model = self._model(case)
        mark_layers(device() == "cuda")  # a microsecond a layer beside hundreds of launches
        make = {"forward": _forward, "generate": self._generate, "request": _request}[case.phase]
        run, tokens, units = make(model, case)
        launch_bound = is_launch_bound(case)
        launch = {"launch": LAUNCHES[self.replays_prefill]} if launch_bound else {}
        read = self.prompt_tokens if case.phase == "generate" else None
        prompt = {} if read is None else {"prompt_tokens": str(read)}
        return Workload(
            run=run,
            units=units,
            tokens=tokens,
            device=device(),
            gate=lambda: self._gate(model, case),
            metrics=self._facts(model).metrics(),
            settings=self._facts(model).settings() | self.settings(case) | launch | prompt,
            replayed=launch_bound and self.replays_prefill,
        )

    def place(self, state: Any, context: int) -> None:
        """Put a state at `context` tokens without reading them; only a KV cache's cost depends on where it stands."""

    def _generate(self, model: Any, case: Case) -> tuple[Callable[[], object], int, int]:
        """A mini-batch of greedy steps; each call starts where `place` puts the state.

        A recurrent state is the one before the first token, and is carried on: its cost does not depend on the tokens.
        """
        state = model.init_generate_state(case.batch, case.context + STEPS)
        ids = random_ids(model, case.batch)

        @torch.inference_mode()
        def run() -> torch.Tensor:
            self.place(state, case.context)
            return greedy_steps(model, ids, state, STEPS)

        return run, case.batch, STEPS

    def _model(self, case: Case) -> Any:
        key = (case.size, case.dtype, case.state_dtype, case.option("mini_batch", None), case.option("form", None))
        if self._loaded is None or self._loaded[0] != key:
            self._loaded = None  # free the old one before the new one is made
            self._verdict = None
            self._loaded = (key, self.load(case))
        return self._loaded[1]

    def _facts(self, model: Any, **counted: float) -> fairness.Facts:
        return fairness.facts_of(model.weights(), model.config.vocabulary, **counted)

    def _gate(self, model: Any, case: Case) -> Verdict:
        """The model against its reference, and whether it is a fair one, once for each model that is loaded."""
        if self._verdict is None:
            fair = fairness.checks(self._facts(model, **self._counted(model)), case)
            self._verdict = Verdict([*self._compare(model, case.dtype).checks, *fair])
        return self._verdict

    @torch.inference_mode()
    def _counted(self, model: Any) -> dict[str, float]:
        """How many rows of the LM head a prefill computes for each of its prompts."""
        ids = random_ids(model, GATE_BATCH, self.gate_prompt)
        _, rows = fairness.count_head_rows(lambda: _last_logits(model, ids), _head(model))
        return {"head_rows": rows / GATE_BATCH}

    @torch.inference_mode()
    def _compare(self, model: Any, dtype: str) -> Verdict:
        """Prefill, then generate, against the reference's prefill of every longer prompt."""
        reference = self.reference(model, torch.float64 if dtype == "float32" else torch.float32)
        prompt = self.gate_prompt
        ids = random_ids(model, GATE_BATCH, prompt + GATE_STEPS)
        got = prefill_then_generate(model, ids, prompt)
        expected = torch.stack([_last_logits(reference, ids[:, : prompt + i]) for i in range(GATE_STEPS + 1)])
        return self._judge(model, ids, got, expected, dtype)

    def _judge(self, model: Any, ids: torch.Tensor, got: torch.Tensor, expected: torch.Tensor, dtype: str) -> Verdict:
        """The verdict on logits [GATE_STEPS + 1, B, V] of a prompt of ids, and after each of its last GATE_STEPS."""
        return logits_verdict(got, expected, dtype)


def logits_verdict(logits: torch.Tensor, reference: torch.Tensor, dtype: str) -> Verdict:
    """Logits [..., V] of a model in `dtype` against its reference's."""
    error_limit, distance_limit = LIMITS[dtype]
    return Verdict(
        [
            Check.at_most("logits_relative_error", relative_error(logits, reference), error_limit),
            Check.at_most("total_variation", total_variation(logits, reference), distance_limit),
            Check.at_most("argmax_disagreement", argmax_disagreement(logits, reference), 1.0),
        ]
    )


def is_launch_bound(case: Case) -> bool:
    """Whether a case is a prefill on a GPU whose launches may take longer than its work."""
    return device() == "cuda" and case.phase == "forward" and case.batch * case.context <= LAUNCH_BOUND_TOKENS


def device() -> str:
    """The GPU where this process sees one, else the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def _head(model: Any) -> torch.Tensor:
    """The weight of the LM head, which all of these models share with their embedding."""
    return next(weight for name, weight in model.weights().items() if "embed" in name)


def random_ids(model: Any, *shape: int) -> torch.Tensor:
    """Token ids of a prompt that no earlier one repeats."""
    return torch.randint(0, model.config.vocabulary, shape, device=device())


def prefill_then_generate(model: Any, ids: torch.Tensor, prompt: int) -> torch.Tensor:
    """The logits after the first `prompt` of ids [B, T] and after each later one: [T - prompt + 1, B, V]."""
    logits, state = model.prefill(ids[:, :prompt], model.init_state(*ids.shape))
    rows, state = [logits.clone()], model.generate_state(state)
    for column in range(prompt, ids.shape[1]):
        rows.append(model.generate_step(ids[:, column], state)[0].clone())
    return torch.stack(rows)


def _last_logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The logits [B, V] after ids [B, T]."""
    return model.prefill(ids, model.init_state(*ids.shape))[0]


def _forward(model: Any, case: Case) -> tuple[Callable[[], object], int, int]:
    """A prompt of `context` tokens from an empty state, head on its last token alone."""
    ids = random_ids(model, case.batch, case.context)

    @torch.inference_mode()
    def run() -> torch.Tensor:
        return _last_logits(model, ids)

    return run, case.batch * case.context, 1


def _request(model: Any, case: Case) -> tuple[Callable[[], object], int, int]:
    """A prompt, then `steps` greedy tokens; on a GPU the steps are replays of one graph."""
    steps = int(case.option("steps", 128))
    prompt = random_ids(model, case.batch, case.context)
    state = model.init_state(case.batch, case.context + steps)
    generating = model.generate_state(state)
    ids = random_ids(model, case.batch)
    step = repeatable(lambda: ids.copy_(greedy_steps(model, ids, generating, 1)))

    @torch.inference_mode()
    def run() -> torch.Tensor:
        model.reset_state(state)
        with nvtx_range("prefill"):
            ids.copy_(model.prefill(prompt, state)[0].argmax(-1))
        with nvtx_range("generate"):
            model.generate_state(state, into=generating)
            for _ in range(steps):
                step()
        return ids

    return run, case.batch * (case.context + steps), 1


def repeatable(step: Callable[[], object]) -> Callable[[], object]:
    """The step as one CUDA graph, after the first calls that compile it; on a CPU the step itself."""
    if device() == "cpu":
        return step
    graph, aside = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.inference_mode():
        with torch.cuda.stream(aside):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(aside)
        with torch.cuda.graph(graph):
            step()
    return graph.replay


def greedy_steps(model: Any, ids: torch.Tensor, state: Any, steps: int) -> torch.Tensor:
    """`steps` tokens, each the most probable after the one before; the last of them, [B]."""
    for _ in range(steps):
        logits, _ = model.generate_step(ids, state)
        ids = logits.argmax(-1)
    return ids
