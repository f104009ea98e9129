"""Measure and check a language model of this repository: what the adapters of its PyTorch models share."""

from collections import deque
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any, ClassVar

import torch

from bench import model_facts
from bench.cost import model_work, total
from bench.kept import kept_bytes
from bench.models.config import MODELS
from bench.models.layers import mark_layers
from bench.plan import LAUNCH_BOUND_TOKENS
from bench.systems import token_times
from bench.systems.ceilings import ceilings_of
from bench.systems.logits import choice_check, logits_verdict, rounding_of, widening
from harness.case import Case
from harness.cuda_clock import side_stream
from harness.gate import Check, Verdict
from harness.ranges import nvtx_range
from harness.system import REPLAYED, Input, Workload
from harness.work import Work

STEPS = 16  # of one call of generate; see `steps_of`
GATE_BATCH, GATE_PROMPT, GATE_STEPS = 2, 37, 13  # past three mini-batch ends
# Tokens of the sequences whose timed outputs are compared with the reference: 2 s of it at 1.3B on one H100.
WITNESS_TOKENS = 16384
WITNESS_SEQUENCES = 4
LONGEST_WITNESS = 65536  # of a prompt that is compared: a million tokens would take the reference minutes
WITHOUT_EFFECT = ("steps", "compare")  # options that leave the model as it is


class LanguageModel:
    """An adapter (`harness.system.SystemAdapter`) of a model with the interface of `bench.models.base.CausalLM`.

    A subclass says how to load its model; weights are random by seed, the same for the model and its reference.
    """

    packages: tuple[str, ...] = ()
    form: ClassVar[str] = "dual"  # of a TTT model's generate
    gate_prompt = GATE_PROMPT
    # Prompt tokens read before decoding; None where the state of a generate case stands at the context.
    prompt_tokens: ClassVar[int | None] = 0

    def __init__(self) -> None:
        self._loaded: tuple[tuple[Any, ...], Any] | None = None
        self._verdict: Verdict | None = None

    def unavailable(self) -> str:
        """These run wherever torch does."""
        return ""

    def settings(self, case: Case) -> dict[str, str]:
        """What the record says of how this case is run."""
        wider = widening(case)
        return {} if wider == 1 else {"gate_limits": f"{wider:g} times those of other models, as it rounds more"}

    def load(self, case: Case) -> Any:
        """The model of the case, with random weights, on `device()` in the dtype of the case."""
        raise NotImplementedError

    def reference(self, model: Any, dtype: torch.dtype) -> Any:
        """The same function with the same weights in `dtype`; by default the same code."""
        reference = type(model)(model.config, device(), dtype)
        reference.copy_weights(model)
        return reference

    def build(self, case: Case) -> Workload:
        """The workload of one case: a forward, a mini-batch of generate steps, or a request."""
        ceilings = ceilings_of(device())  # measured while the GPU's memory is still empty
        model = self._model(case)
        mark_layers(device() == "cuda")  # a microsecond a layer beside hundreds of launches
        work = self.work(model, case)
        self.make_ready(work)
        work.capture()
        read = self.prompt_tokens if case.phase == "generate" else None
        prompt = {} if read is None else {"prompt_tokens": str(read)}
        cost = self.cost(model, case)
        return Workload(
            run=work.run,
            units=work.units,
            tokens=work.tokens,
            device=device(),
            inputs={"ids": Input(work.ids, "tokens", model.config.vocabulary, 0, work.token_axis)},
            witness=work.witness,
            gate=lambda: self._gate(model, case),
            measured=work.measured,
            metrics=self._facts(model).metrics() | total(cost).metrics() | self.kept(model, case) | ceilings,
            work=cost,
            settings=self._facts(model).settings() | self.settings(case) | prompt | work.settings,
        )

    def work(self, model: Any, case: Case) -> "PhaseWork":
        """What is timed of a case."""
        return {"forward": Forward, "generate": Generate, "request": Request}[case.phase](self, model, case)

    def make_ready(self, work: "PhaseWork") -> None:
        """Compile or tune what the work will launch; afterwards it stands where the case begins."""

    def cost(self, model: Any, case: Case) -> dict[str, Work]:
        """FLOPs and bytes of one unit of a case, by part."""
        return model_work(model.config, self._facts(model).parameters, case, self.form)

    def kept(self, model: Any, case: Case) -> dict[str, float | None]:
        """What all sequences of a case keep of their past; nothing for models that size themselves."""
        if case.system not in MODELS:
            return {}
        return {"state_bytes": case.batch * kept_bytes(model.config, case, self.form)}

    def place(self, state: Any, context: int) -> None:
        """Put a state at `context` tokens without reading them; only a KV cache's cost depends on where it stands."""

    def fill_past(self, state: Any) -> None:
        """Fill what a generate state keeps of the tokens before `place`, with random numbers; a cache alone does."""

    def restart(self, model: Any, state: Any) -> None:
        """Put a generate state where a generate case begins, in place, for the call that is checked."""
        model.reset_state(state)

    def rows_of_state(self, state: Any, rows: list[int]) -> Any:
        """Of a restarted state what `expected_logits` needs; nothing where it is the state before the first token."""
        return None

    def expected_logits(self, reference: Any, begun: Any, calls: list[torch.Tensor], case: Case) -> torch.Tensor:
        """The reference's logits [rows, V] after the tokens [steps, rows] of calls that follow a restart."""
        return last_logits(reference, torch.cat(calls).T)

    def witness_reference(self, model: Any, dtype: torch.dtype) -> Any:
        """The reference for long prompts: as exact as `reference`, and fast enough for thousands of tokens."""
        return self.reference(model, dtype)

    def _model(self, case: Case) -> Any:
        options = tuple(pair for pair in case.options if pair[0] not in WITHOUT_EFFECT)
        key = (case.size, case.dtype, case.state_dtype, options)
        if self._loaded is None or self._loaded[0] != key:
            self._loaded = None  # free the old one before the new one is made
            self._verdict = None
            self._loaded = (key, self.load(case))
        return self._loaded[1]

    @property
    def loaded(self) -> Any:
        """What tells the model that is loaded from others; None before the first."""
        return self._loaded and self._loaded[0]

    def _facts(self, model: Any, **counted: float) -> model_facts.Facts:
        return model_facts.facts_of(model.weights(), model.config.vocabulary, **counted)

    def _gate(self, model: Any, case: Case) -> Verdict:
        """The model against its reference, and whether it is a fair one, once for each model that is loaded."""
        if self._verdict is None:
            fair = model_facts.checks(self._facts(model, **self._counted(model)), case)
            self._verdict = Verdict([*self._compare(model, case).checks, *fair])
        return self._verdict

    @torch.inference_mode()
    def _counted(self, model: Any) -> dict[str, float]:
        """How many rows of the LM head a prefill computes for each of its prompts."""
        ids = random_ids(model, GATE_BATCH, self.gate_prompt)
        _, rows = model_facts.count_head_rows(lambda: last_logits(model, ids), model.head)
        return {"head_rows": rows / GATE_BATCH}

    @torch.inference_mode()
    def _compare(self, model: Any, case: Case) -> Verdict:
        """Prefill, then generate, against the reference's prefill of every longer prompt."""
        reference = self.reference(model, torch.float64 if case.dtype == "float32" else torch.float32)
        prompt = self.gate_prompt
        ids = random_ids(model, GATE_BATCH, prompt + GATE_STEPS)
        got = prefill_then_generate(model, ids, prompt)
        expected = torch.stack([last_logits(reference, ids[:, : prompt + i]) for i in range(GATE_STEPS + 1)])
        return self._judge(model, ids, got, expected, case)

    def _judge(self, model: Any, ids: torch.Tensor, got: torch.Tensor, expected: torch.Tensor, case: Case) -> Verdict:
        """The verdict on logits [GATE_STEPS + 1, B, V] of a prompt of ids, and after each of its last GATE_STEPS."""
        return logits_verdict(got, expected, case.dtype, widening(case))


def steps_of(model: Any) -> int:
    """Steps of one call of generate: whole mini-batches, so that the step that rewrites W has its share."""
    mini_batch = getattr(model.config, "mini_batch", 1)
    return STEPS if STEPS % mini_batch == 0 else mini_batch


def device() -> str:
    """The GPU where this process sees one, else the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


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


def last_logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The logits [B, V] after ids [B, T]."""
    return model.prefill(ids, model.init_state(*ids.shape))[0]


def not_compared(tokens: int, most: int) -> Callable[[Any, int], Verdict]:
    """The judge of prompts that are too long for the reference."""
    words = f"the outputs of prompts of {tokens} tokens were compared with nothing: the reference reads at most {most}"
    return lambda outputs, calls: Verdict([], words)


class PhaseWork:
    """The timed callable of one phase, on token ids that the harness renews, and the check of what it left."""

    units = 1
    token_axis: int | None = 1
    ids: torch.Tensor
    settings: dict[str, str]  # what the record says of how this phase is run

    def __init__(self, adapter: LanguageModel, model: Any, case: Case) -> None:
        self.adapter, self.model, self.case = adapter, model, case
        self.settings = {}
        self.prepare()

    def prepare(self) -> None:
        """Make the inputs and the state."""
        raise NotImplementedError

    def run(self) -> Any:
        """The timed call; its outputs."""
        raise NotImplementedError

    def capture(self) -> None:
        """Capture what `run` replays, once the adapter has made ready what it launches."""

    def restart(self) -> None:
        """Put what calls carry on back to where the case begins, in place."""

    def witness(self, chance: Random) -> Callable[[Any, int], Verdict]:
        """See Workload.witness."""
        raise NotImplementedError

    @property
    def tokens(self) -> int:
        """How many tokens one unit stands for."""
        return self.case.batch * self.case.context

    def measured(self, calls: int) -> dict[str, float | None]:
        """See Workload.measured."""
        return {}

    def rows(self, chance: Random, tokens: int) -> list[int]:
        """A few sequences of the batch, of at most WITNESS_TOKENS together but at least one."""
        count = max(1, min(self.case.batch, WITNESS_SEQUENCES, WITNESS_TOKENS // max(1, tokens)))
        return sorted(chance.sample(range(self.case.batch), count))

    def reference(self) -> Any:
        """The model in a type that is exact beside the case's."""
        exact = torch.float64 if self.case.dtype == "float32" else torch.float32
        return self.adapter.witness_reference(self.model, exact)

    def chosen(self, expected: torch.Tensor, tokens: torch.Tensor) -> Check:
        """Whether tokens [rows], which the timed call chose, are those of the reference's largest logits [rows, V]."""
        dtype, wider = rounding_of(self.case), widening(self.case)
        return choice_check("timed_token_below_best", expected, tokens, dtype, wider)

    def verdict(self, got: torch.Tensor, expected: torch.Tensor) -> Verdict:
        """The verdict on logits [rows, V] that the timed call left."""
        checks = logits_verdict(got, expected, rounding_of(self.case), widening(self.case)).checks
        return Verdict([Check.at_most(f"timed_{each.name}", each.value, each.limit) for each in checks])


class Forward(PhaseWork):
    """A prompt of `context` tokens from an empty state, head on its last token alone."""

    def prepare(self) -> None:
        """See PhaseWork.prepare."""
        self.ids = random_ids(self.model, self.case.batch, self.case.context)
        # Made once, as engines make their cache: a Transformer's, of zeros, takes 2 ms of 16 prompts of 2k.
        self._state = self.model.init_state(self.case.batch, self.case.context)

    @torch.inference_mode()
    def run(self) -> torch.Tensor:
        """Logits [B, V] after the prompts."""
        self.model.reset_state(self._state)
        return self.model.prefill(self.ids, self._state)[0]

    def witness(self, chance: Random) -> Callable[[torch.Tensor, int], Verdict]:
        """A few whole prompts, read by the reference."""
        if self.case.context > LONGEST_WITNESS:
            return not_compared(self.case.context, LONGEST_WITNESS)
        rows = self.rows(chance, self.case.context)

        @torch.inference_mode()
        def judge(logits: torch.Tensor, calls: int) -> Verdict:
            expected = last_logits(self.reference(), self.ids[rows])
            return self.verdict(logits[rows], expected)

        return judge


class Generate(PhaseWork):
    """Whole mini-batches of greedy steps; each call starts where `place` puts the state.

    A recurrent state is the one before the first token, and is carried on: its cost does not depend on the tokens.
    """

    token_axis = None

    @property
    def units(self) -> int:  # type: ignore[override]
        """Steps of a call."""
        return steps_of(self.model)

    def prepare(self) -> None:
        """See PhaseWork.prepare."""
        self.state = self.model.init_generate_state(self.case.batch, self.case.context + self.units)
        with torch.inference_mode():
            self.adapter.fill_past(self.state)
        self.ids = random_ids(self.model, self.case.batch)

    @property
    def tokens(self) -> int:
        """One a sequence."""
        return self.case.batch

    @torch.inference_mode()
    def run(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [B, V] of the last step, and the tokens [units, B] that the steps read."""
        self.adapter.place(self.state, self.case.context)
        return greedy_steps(self.model, self.ids, self.state, self.units)

    @torch.inference_mode()
    def restart(self) -> None:
        """See PhaseWork.restart."""
        self.adapter.restart(self.model, self.state)

    def witness(self, chance: Random) -> Callable[[Any, int], Verdict]:
        """Two calls from where the case begins: the second, timed, reads what the first left in the state."""
        rows = self.rows(chance, self.case.context)
        self.restart()
        with torch.inference_mode():
            begun = self.adapter.rows_of_state(self.state, rows)
            before = self.run()[1][:, rows].clone()

        @torch.inference_mode()
        def judge(outputs: tuple[torch.Tensor, torch.Tensor], calls: int) -> Verdict:
            if calls > 1:
                return Verdict([], f"{calls} calls make a sample, so the state that they left was not compared")
            logits, tokens, reference = outputs[0][rows], outputs[1][:, rows], self.reference()

            def expected(steps: int) -> torch.Tensor:
                return self.adapter.expected_logits(reference, begun, [before, tokens[:steps]], self.case)

            # The first token that the call chose, and the last: the logits are those after them, whatever they are.
            chosen = sorted({1, len(tokens) - 1}) if len(tokens) > 1 else []
            own = [self.chosen(expected(step), tokens[step]) for step in chosen]
            return Verdict([*self.verdict(logits, expected(len(tokens))).checks, *own])

        return judge


class Request(PhaseWork):
    """A prompt, then `steps` greedy tokens; on a GPU the steps, and prompts of few tokens, are replays of graphs.

    Its moments are the host's, as an engine's are: it has each token before it begins the step after the next.
    """

    def prepare(self) -> None:
        """See PhaseWork.prepare."""
        case, model = self.case, self.model
        self.steps = int(case.option("steps", 128))
        self.ids = random_ids(model, case.batch, case.context)
        self._state = model.init_state(case.batch, case.context + self.steps)
        self._generating = model.generate_state(self._state)
        self._next = random_ids(model, case.batch)
        self._read = self._next.new_zeros(self.steps, case.batch)
        self._logits: Any = None
        self._on_host = token_times.TokensOnHost(self.steps + 1, case.batch, device() != "cpu")
        self._moments: deque[list[float]] = deque(maxlen=token_times.TIMED_REQUESTS)
        launch_bound = case.batch * case.context <= LAUNCH_BOUND_TOKENS
        self._replays_prompt = launch_bound and device() != "cpu"
        self.settings = {"prompt": REPLAYED if self._replays_prompt else "launched"}
        if device() != "cpu":
            self.settings["tokens"] = "copied to the host one by one, each while the next step runs"
        self._read_prompt: Callable[[], object] = self._prefill
        self._begin: Callable[[], object] = lambda: model.generate_state(self._state, into=self._generating)
        self._step: Callable[[], object] = self._one_step

    def capture(self) -> None:
        """See PhaseWork.capture."""
        if self._replays_prompt:
            self._read_prompt = repeatable(self._read_prompt)
        self._begin, self._step = repeatable(self._begin), repeatable(self._step)

    @property
    def tokens(self) -> int:
        """Prompt and steps."""
        return self.case.batch * (self.case.context + self.steps)

    def _prefill(self) -> None:
        self.model.reset_state(self._state)
        self._next.copy_(self.model.prefill(self.ids, self._state)[0].argmax(-1))

    def _one_step(self) -> None:
        self._logits, _ = self.model.generate_step(self._next, self._generating)
        self._next.copy_(self._logits.argmax(-1))

    @torch.inference_mode()
    def run(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [B, V] of the last step, and the tokens [steps, B] that the steps read."""
        moments = [token_times.now()]
        with nvtx_range("prefill"):
            self._read_prompt()
            self._on_host.send(0, self._next)
        with nvtx_range("generate"):
            self._begin()
            for place, read in enumerate(self._read):
                read.copy_(self._next)
                self._step()
                self._on_host.send(place + 1, self._next)
                moments.append(self._on_host.arrived(place))
        moments.append(self._on_host.arrived(self.steps))
        self._moments.append(moments)
        return self._logits, self._read

    def measured(self, calls: int) -> dict[str, float | None]:
        """See token_times.metrics; all sequences of a call have their tokens at once."""
        last = list(self._moments)[-calls:]
        times = [[(later - earlier) * 1e3 for earlier, later in pairwise(moments)] for moments in last]
        return token_times.metrics([[(first, steps)] for first, *steps in times])

    def witness(self, chance: Random) -> Callable[[Any, int], Verdict]:
        """A few whole requests, read by the reference."""
        tokens = self.case.context + self.steps
        if tokens > LONGEST_WITNESS:
            return not_compared(tokens, LONGEST_WITNESS)
        rows = self.rows(chance, tokens)

        @torch.inference_mode()
        def judge(outputs: tuple[torch.Tensor, torch.Tensor], calls: int) -> Verdict:
            logits, read = outputs
            whole, reference = torch.cat([self.ids[rows], read[:, rows].T], dim=1), self.reference()
            own = [  # the prompt's token, and the last
                self.chosen(last_logits(reference, whole[:, :at]), whole[:, at])
                for at in sorted({self.case.context, tokens - 1})
            ]
            return Verdict([*self.verdict(logits[rows], last_logits(reference, whole)).checks, *own])

        return judge


def repeatable(step: Callable[[], object]) -> Callable[[], object]:
    """The step as one CUDA graph, after the first calls that compile it; on a CPU the step itself."""
    if device() == "cpu":
        return step
    graph, aside = torch.cuda.CUDAGraph(), side_stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.inference_mode():
        with torch.cuda.stream(aside):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(aside)
        with torch.cuda.graph(graph):
            step()
    return graph.replay


def greedy_steps(model: Any, ids: torch.Tensor, state: Any, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`steps` tokens, each the most probable after the one before: logits [B, V] of the last step, tokens [steps, B].

    The tokens are those that the steps read, `ids` first.
    """
    read = []
    for _ in range(steps):
        read.append(ids)
        logits, _ = model.generate_step(ids, state)
        ids = logits.argmax(-1)
    return logits, torch.stack(read)
