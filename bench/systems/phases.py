"""Time a language model's forward, generate or request phase, and check the timed logits.

Shapes: B sequences, T tokens per sequence, V entries of the vocabulary.
"""

from collections import deque
from collections.abc import Callable, Collection
from itertools import groupby, pairwise
from random import Random
from typing import Any

import torch

from bench.catalogue.systems import LAUNCH_BOUND_TOKENS
from bench.systems import token_times
from bench.systems.checked_sequences import LONGEST_CHECKED, draw_sequences, not_compared, with_prefix
from bench.systems.logits import check_early_tokens, check_logits, choice_check, limit_dtype, limit_factor_by_rounding
from bench.systems.model_calls import STEPS, exact_dtype, greedy_steps, last_logits, random_ids
from bench.systems.on_device import device
from harness.measure.correctness import Checks
from harness.measure.cuda_clock import graph_replay
from harness.measure.ranges import nvtx_range
from harness.measure.system import REPLAYED
from harness.schema.case import Case

Logits = dict[int, torch.Tensor]  # logits [B, V] by the number of tokens read after the prefix
LogitsAfter = Callable[[Any, list[int], torch.Tensor, Collection[int]], Logits]  # see `PhaseWork.new_past`
TIMED_MINI_BATCHES = 8  # mini-batches whose steps are timed one by one


def logits_along(model: Any, prefix: torch.Tensor, tokens: torch.Tensor, numbers: Collection[int]) -> Logits:
    """Return {n: logits [B, V] after a prefix and the first n of `tokens`} for n in `numbers`.

    prefix [B, T]: token ids. tokens [steps, B]: the ids that follow, one per sequence and step.
    """
    ids = torch.cat([prefix, tokens.T], dim=1)
    # `logits` runs a prompt in one piece, `last_logits` in chunks.
    found = model.logits(ids, len(tokens) + 1) if len(tokens) else last_logits(model, ids)[:, None]
    return {n: found[:, n].clone() for n in numbers}


class PhaseWork:
    """Base class of a case's timed work; each subclass implements one phase.

    adapter: makes the reference models. units: generate steps per call; 1 in other phases.
    ids: token ids that the timed call reads; the harness refills them in place.
    token_axis: axis of `ids` that counts tokens; None for ids [B].
    """

    units = 1
    token_axis: int | None = 1
    ids: torch.Tensor
    settings: dict[str, str]  # for the record
    renews_past = False  # see Workload
    continues = False  # whether calls may continue one state; then only samples of one call are checked

    def __init__(self, adapter: Any, model: Any, case: Case) -> None:
        self.adapter, self.model, self.case = adapter, model, case
        self._rows: list[int] = []
        self._ahead = [0] * case.batch  # per sequence: how many tokens of its mini-batch it has read
        self._previous: tuple[torch.Tensor, torch.Tensor] | None = None
        self.settings = {}
        self.prepare()

    def prepare(self) -> None:
        """Allocate the token ids and the state. Called by the constructor."""
        raise NotImplementedError

    def run(self) -> Any:
        """Run the timed call and return its outputs."""
        raise NotImplementedError

    def launch_each_kernel(self) -> None:
        """Launch every kernel of `run`, to compile and tune it. By default, call `run`."""
        self.run()

    def capture(self) -> None:
        """After compilation, capture graphs for `run` and `measured`. By default, do nothing."""

    def restart(self) -> None:
        """Reset the state. By default, do nothing, because `run` resets the state itself."""

    def timed_check(self, rng: Random) -> Callable[[Any, int], Checks]:
        """Return f(outputs, calls), which checks the logits of random sequences.

        outputs: the result of the last `run`. calls: number of calls of `run` in the timed sample.
        f compares nothing above LONGEST_CHECKED tokens per sequence, or if `continues` and calls > 1.
        """
        tokens = self.tokens // self.case.batch
        if tokens > LONGEST_CHECKED:
            return not_compared(tokens, LONGEST_CHECKED)
        rows = self.compared_rows(rng)
        sources = self.copy_rows(rng, rows)  # by default, copies `rows` over the whole batch
        with torch.inference_mode():
            logits_after = self.new_past(rows, sources)

        @torch.inference_mode()
        def compare(outputs: Any, calls: int) -> Checks:
            if calls > 1 and self.continues:
                return Checks([], f"timed outputs not checked: a sample is {calls} calls, and the reference runs one")
            logits, read = outputs if isinstance(outputs, tuple) else (outputs, self.ids.new_empty(0, self.case.batch))
            return self.checks(logits, rows, sources, logits_after, read)

        return compare

    def new_past(self, rows: list[int], sources: list[int]) -> LogitsAfter:
        """Return f(model, some, tokens, numbers), which computes the logits of a reference model.

        A sequence's prefix is what it has read before the timed steps: by default, its prompt in `ids`.
        f runs `model` on the prefixes of the sequences with indices `some`, then on tokens [steps, len(some)].
        It returns {n: logits [len(some), V] after n of these steps} for n in `numbers`.
        rows: indices of the compared sequences. sources [B]: sequence i has the prefix of sequence sources[i].
        If `renews_past`, this method draws new prefixes.
        """
        return lambda model, some, tokens, numbers: logits_along(model, self.ids[some], tokens, numbers)

    @property
    def tokens(self) -> int:
        """Number of tokens that one unit of work processes, over all sequences."""
        return self.case.batch * self.case.context

    def measured(self, calls: int) -> dict[str, float | None]:
        return {}

    def reference(self) -> Any:
        return self.adapter.timed_check_reference(self.model, exact_dtype(self.case), self.case)

    def rounded_reference(self) -> Any:
        return self.adapter.rounded_reference(self.model, self.case)

    @property
    def compared_tokens(self) -> int:
        """Cost of checking one sequence, in tokens; if high, `compared_rows` selects fewer sequences."""
        return self.tokens // self.case.batch

    def compared_rows(self, rng: Random) -> list[int]:
        """Return the sorted indices of the compared sequences; the first call draws them at random.

        If sequences start at different positions in a mini-batch, one is drawn for each position.
        """
        if not self._rows:
            at: dict[int, list[int]] = {}
            for row, ahead in enumerate(self._ahead):
                at.setdefault(ahead, []).append(row)
            one_each = sorted(map(rng.choice, at.values()))
            self._rows = draw_sequences(rng, self.case.batch, self.compared_tokens) if len(at) == 1 else one_each
        return self._rows

    def copy_rows(self, rng: Random, rows: list[int]) -> list[int]:
        """Copy token ids of sequences `rows` to all others; return each sequence's source index.

        Sequences `rows` are their own sources. The others copy a random one of `rows` at the same mini-batch position.
        """
        alike = [[row for row in rows if self._ahead[row] == ahead] for ahead in self._ahead]
        sources = [row if row in rows else rng.choice(like) for row, like in enumerate(alike)]
        self.ids.copy_(self.ids[sources])
        return sources

    def checks(
        self, logits: torch.Tensor, rows: list[int], sources: list[int], logits_after: LogitsAfter, tokens: torch.Tensor
    ) -> Checks:
        """Compare timed logits [B, V], and some tokens that the steps read, with the reference.

        rows: indices of the compared sequences. sources [B]: sequence i copies sequence sources[i], one of `rows`.
        If any copy's logits differ from its source's, each row's most different copy is compared, too.
        logits_after: the function that `new_past` returned.
        tokens [steps, B]: the steps' input ids. In `checked_steps`, each must be nearly the reference's best choice.
        From the second call on, the logits' change since the previous call must match the reference's change.
        """
        off = (logits.float() - logits[sources].float()).norm(dim=-1).nan_to_num(torch.inf)
        repeated = torch.tensor(sources, device=off.device)
        unlike = [int(off.where(repeated == row, -1).argmax()) for row in rows]
        groups = [rows, unlike] if off.any() else [rows]
        steps = len(tokens)
        reference, chosen = self.reference(), self.checked_steps(steps)
        numbers = {*chosen, steps}
        truths = [logits_after(reference, rows, tokens[:, rows], numbers)]
        if len(groups) > 1:  # the copies read the rows' tokens, but may have generated others
            alike = torch.equal(tokens[:, unlike], tokens[:, rows])
            truths.append(truths[0] if alike else logits_after(reference, unlike, tokens[:, unlike], numbers))
        del reference
        whole = truths[0][steps]
        rounded = self.rounded_reference()
        rounded_logits = None if rounded is None else logits_after(rounded, rows, tokens[:, rows], {steps})[steps]
        factor = limit_factor_by_rounding(rounded_logits, whole, self.case)
        found = Checks([])
        for some, truth in zip(groups, truths, strict=True):
            found += with_prefix("timed_", check_logits(logits[some], truth[steps], limit_dtype(self.case), factor))
            for at in chosen:
                name = "timed_token_below_best"
                found += Checks([choice_check(name, truth[at], tokens[at, some], limit_dtype(self.case), factor)])
        return found + self._check_early_tokens(logits[rows], whole)

    def checked_steps(self, steps: int) -> list[int]:
        """Return indices of steps whose input tokens are checked: 1 and the last; [] if steps < 2."""
        return sorted({1, steps - 1}) if steps > 1 else []

    def _check_early_tokens(self, got: torch.Tensor, expected: torch.Tensor) -> Checks:
        before, self._previous = self._previous, (got.clone(), expected)
        if before is None:
            return Checks([])
        width = self.model.config.width
        return with_prefix("timed_", check_early_tokens((before[0], got), (before[1], expected), width))


class Forward(PhaseWork):
    """Timed forward: read prompts of `context` tokens from an empty state; return last logits."""

    def prepare(self) -> None:
        self.ids = random_ids(self.model, self.case.batch, self.case.context)
        # Allocated once, as engines do: filling a Transformer's cache with zeros takes milliseconds.
        self._state = self.model.init_state(self.case.batch, self.case.context)

    @torch.inference_mode()
    def run(self) -> torch.Tensor:
        """Return the logits [B, V] after the prompts."""
        self.model.reset_state(self._state)
        return self.model.prefill(self.ids, self._state)[0]


class Generate(PhaseWork):
    """Timed generate: each call runs greedy steps that fill one or more mini-batches.

    A recurrent model continues from the state that the previous call left.
    Option `positions`: also time single steps. "staggered": sequences start at different positions in a mini-batch.
    """

    token_axis = None
    renews_past = continues = True
    _times_steps = False

    @property
    def units(self) -> int:  # type: ignore[override]
        """Generate steps per call: whole mini-batches, because TTT updates W at the end of each."""
        mini_batch = getattr(self.model.config, "mini_batch", 1)
        return STEPS if STEPS % mini_batch == 0 else mini_batch

    def prepare(self) -> None:
        self.state = self.model.init_generate_state(self.case.batch, self.case.context + self.units)
        self.settings = {"prompt_tokens": "0"}
        batch, positions = self.case.batch, self.case.option("positions")
        if positions == "staggered":
            self._ahead = [row * self.units // batch for row in range(batch)]
        self.ids, self._before = random_ids(self.model, batch), random_ids(self.model, max(self._ahead), batch)
        self.restart()
        self._times_steps = bool(positions)
        self._next = self.ids.clone()
        self._step: Callable[[], object] = self._one_step

    def capture(self) -> None:
        if self._times_steps:
            self._step = graph_replay(self._one_step)

    @property
    def tokens(self) -> int:
        return self.case.batch

    @torch.inference_mode()
    def run(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits [B, V] of the last step, and the tokens [units, B] that the steps read."""
        return greedy_steps(self.model, self.ids, self.state, self.units)

    @torch.inference_mode()
    def restart(self) -> None:
        """Reset the state. If staggered, sequences then read random tokens up to their positions."""
        self.model.reset_state(self.state)
        for ahead, rows in groupby(range(self.case.batch), key=self._ahead.__getitem__):
            if ahead:
                first, *rest = rows
                some = slice(first, first + 1 + len(rest))
                state = self.state.rows(some)
                for ids in self._before[-ahead:, some]:
                    self.model.generate_step(ids, state)

    def _one_step(self) -> None:
        self._next.copy_(self.model.generate_step(self._next, self.state)[0].argmax(-1))

    @torch.inference_mode()
    def measured(self, calls: int) -> dict[str, float | None]:
        """Time steps one by one; return ITL percentiles in ms. {} without the option `positions`."""
        if not self._times_steps:
            return {}
        count = TIMED_MINI_BATCHES * self.units + 1
        on_host = token_times.TokensOnHost(count, self.case.batch, device() != "cpu")
        moments = []
        for step in range(count):
            self._step()
            on_host.send(step, self._next)
            moments += [on_host.arrived(step - 1)] if step else []
        moments.append(on_host.arrived(count - 1))
        return token_times.percentiles([(later - earlier) * 1e3 for earlier, later in pairwise(moments)])

    @property
    def compared_tokens(self) -> int:
        return self.case.context

    def new_past(self, rows: list[int], sources: list[int]) -> LogitsAfter:
        self._before = random_ids(self.model, *self._before.shape)[:, sources]
        self.restart()
        past = random_ids(self.model, self.units, self.case.batch)[:, sources]
        for ids in past:
            self.model.generate_step(ids, self.state)
        whole = torch.cat([self._before, past])

        def logits_after(model: Any, some: list[int], tokens: torch.Tensor, numbers: Collection[int]) -> Logits:
            found = []
            for ahead, group in groupby(range(len(some)), key=lambda at: self._ahead[some[at]]):
                columns = [*group]
                own = whole[len(whole) - self.units - ahead :, [some[at] for at in columns]]
                found.append(logits_along(model, own.T, tokens[:, columns], numbers))
            return {n: torch.cat([logits[n] for logits in found]) for n in numbers}

        return logits_after


class Request(PhaseWork):
    """Timed request: read a prompt, then run `steps` greedy steps.

    On a GPU, the steps and short prompts run as CUDA graphs. The host measures TTFT and ITL as a serving engine does:
    after launching a step, it waits until the step's input token is on the host.
    """

    def prepare(self) -> None:
        case, model = self.case, self.model
        self.steps = case.new_tokens
        self.ids = random_ids(model, case.batch, case.context)
        self._state = model.init_state(case.batch, case.context + self.steps)
        self._generate_state = model.generate_state(self._state)
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
        self._begin: Callable[[], object] = lambda: model.generate_state(self._state, into=self._generate_state)
        self._step: Callable[[], object] = self._one_step

    def capture(self) -> None:
        if self._replays_prompt:
            self._read_prompt = graph_replay(self._read_prompt)
        self._begin, self._step = graph_replay(self._begin), graph_replay(self._step)

    @property
    def tokens(self) -> int:
        return self.case.batch * (self.case.context + self.steps)

    def _prefill(self) -> None:
        self.model.reset_state(self._state)
        self._next.copy_(self.model.prefill(self.ids, self._state)[0].argmax(-1))

    def _one_step(self) -> None:
        self._logits, _ = self.model.generate_step(self._next, self._generate_state)
        self._next.copy_(self._logits.argmax(-1))

    @torch.inference_mode()
    def run(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits [B, V] of the last step, and the tokens [steps, B] that the steps read."""
        moments = [token_times.now()]
        with nvtx_range("forward"):
            self._read_prompt()
            self._on_host.send(0, self._next)
        with nvtx_range("generate"):
            self._begin()
            for step, read in enumerate(self._read):
                read.copy_(self._next)
                self._step()
                self._on_host.send(step + 1, self._next)
                moments.append(self._on_host.arrived(step))
        moments.append(self._on_host.arrived(self.steps))
        self._moments.append(moments)
        return self._logits, self._read

    @torch.inference_mode()
    def launch_each_kernel(self) -> None:
        """Read the prompt, and run only one of the steps, which are not yet a CUDA graph."""
        self._read_prompt()
        self._begin()
        self._step()

    def measured(self, calls: int) -> dict[str, float | None]:
        """Return medians of TTFT and ITL in ms, with 95% intervals, of the last `calls` calls."""
        last = list(self._moments)[-calls:]
        times = [[(later - earlier) * 1e3 for earlier, later in pairwise(moments)] for moments in last]
        return token_times.metrics([[(first, steps)] for first, *steps in times])

    def checked_steps(self, steps: int) -> list[int]:
        return sorted({0, steps - 1})
