"""Make up runs from formulas and noise, for tests."""

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import chain, product
from pathlib import Path
from typing import Any

import pandas as pd
from small_runs import a_run

from bench.catalogue import CATALOGUE
from bench.catalogue.suites import SUITES
from harness.schema.case import Case
from harness.schema.catalogue import Catalogue, SuiteEntry
from harness.schema.record import Record
from reports.page.figures import Figure, figures
from reports.stats import frame

H100 = "NVIDIA H100 80GB HBM3"
PAPER_SYSTEMS = (
    ("ttt-linear", "thunderkittens"),
    ("ttt-mlp", "thunderkittens"),
    ("transformer", "vllm"),
    ("mamba", "mamba-ssm"),
)
_FORWARD_US = {"ttt-linear": 4.4, "ttt-mlp": 6.1, "transformer": 4.6, "mamba": 7.8}
_STEP_MS = {"ttt-linear": 5.1, "ttt-mlp": 15.2, "transformer": 9.0, "mamba": 10.7}
_PARAMETERS = defaultdict(lambda: 1_310_000_000, {"125m": 130_000_000})


@lru_cache
def environment(
    device: str = H100,
    commit: str = "3f2a91c04d5be6788a1f0c2d4e6b8a9c0d1e2f34",
    seed: int = 0,
    device_id: str = "5eedf00d",
) -> dict:
    rng = random.Random(seed)
    software = {name: f"{len(name)}.{3 * len(name) % 20}.1" for name in ("torch", "triton", "vllm", "mamba-ssm")}
    readings = {
        when: {
            "sm_clock_mhz": rng.choice([1980, 1965, 1755]),
            "memory_clock_mhz": 2619,
            "temperature_c": rng.randint(38, 64),
            "power_w": round(rng.uniform(110, 690), 2),
            "throttle_reasons": rng.choice([[], [], [], ["sw_power_cap"]]),
        }
        for when in ("before", "after")
    }
    gpu = {
        "name": device,
        "device_id": device_id,
        "driver": "580.159.04",
        "memory_bytes": 85_520_809_984,
        "sms": 132,
        "power_limit_w": 700.0,
    }
    cpu = {"model": "Intel(R) Xeon(R) Platinum 8480C", "cores": 16}
    loads = {when: {"load_1m": round(rng.uniform(0.2, 6), 2)} for when in ("before", "after")}
    return {
        "device": device,
        "device_kind": "cuda",
        "gpu": gpu | readings,
        "cpu": cpu | loads,
        "software": {"python": "3.12.11", "cuda": "13.0", "os": "Linux 6.8"} | software,
        "commit": commit,
        "dirty": False,
    }


def ok(case: Case, latency_ms: float, count: int = 30, spread: float = 0.012, **fields: object) -> Record:
    rng = random.Random(case.key)
    samples = [latency_ms * (1 + abs(rng.gauss(0, spread)) + rng.gauss(0, spread / 4)) for _ in range(count)]
    defaults = {
        "tokens": case.batch * case.context if case.phase == "forward" else case.batch,
        "throttled": [False for _ in samples],
        "check": {"passed": True, "checks": [{"name": "output", "value": 0.001, "limit": 0.02, "passed": True}]},
        "stop": "interval",
        "peak_memory_bytes": int(3e9 + 1e5 * case.batch * max(case.context, 64)),
        "environment": environment(seed=rng.randrange(100)),
        "metrics": {"parameters": _PARAMETERS[case.size], "flops": 2.6e9 * case.batch, "bytes": 2.62e9},
        "started_at": f"2026-03-0{rng.randint(1, 4)}T10:{rng.randint(10, 59)}:05+00:00",
        "wall_s": 12.5,
    }
    return Record(case, "ok", samples_ms=samples, **(defaults | fields))


@dataclass(frozen=True)
class Made:
    records: list[Record]
    catalogue: Catalogue

    @property
    def table(self) -> pd.DataFrame:
        return frame(self.records, self.catalogue)

    def of(self, suite: str) -> list[Record]:
        keys = {key for each in self.catalogue.suites if each.name == suite for key in each.cases}
        return [record for record in self.records if record.case.key in keys]

    def run(self, folder: Path) -> Path:
        repeats = 1 + max((record.repeat for record in self.records), default=0)
        return a_run(folder, *self.records, repeats=repeats, catalogue=self.catalogue).folder


def made(pairs: Iterable[tuple[str, Record]]) -> Made:
    """Make a run from (suite, record) pairs; for each case and repeat, only the first record is kept."""
    members: dict[str, dict[str, None]] = {}
    records: dict[tuple[str, int], Record] = {}
    for suite, record in pairs:
        records.setdefault((record.case.key, record.repeat), record)
        members.setdefault(suite, {})[record.case.key] = None
    known = {suite.name: suite for suite in SUITES}
    entries = (
        SuiteEntry(name, known[name].question, known[name].figures, tuple(keys))
        if name in known
        else SuiteEntry(name, "", (), tuple(keys))
        for name, keys in members.items()
    )
    return Made(list(records.values()), replace(CATALOGUE, suites=tuple(entries)))


def of_suite(suite: str, *records: Record) -> Made:
    return made((suite, record) for record in records)


def lost(case: Case, status: str, reason: str) -> Record:
    return Record(case, status, reason, environment=environment(), started_at="2026-03-02T11:00:00+00:00")


@cache
def paper() -> Made:
    """Return a run of the paper's suites, in which some cases have no result; tests share it, so do not change it."""
    return made(chain(_fig15(), _fig20(), _fig8(), _dual_and_primal(), _requests(), _quick(), kernels(), fidelity()))


@cache
def paper_figures() -> list[Figure]:
    return figures(paper().table, paper().catalogue)


SuiteRecords = Iterator[tuple[str, Record]]


def _fig15() -> SuiteRecords:
    contexts = [1024 << step for step in range(6)]
    for (system, backend), context in product(PAPER_SYSTEMS, contexts):
        quadratic = context / 32768 * 8 if system == "transformer" else 0
        case = Case(system, backend, "1.3b", "forward", 16, context)
        yield "fig15-forward", ok(case, (_FORWARD_US[system] + quadratic) * 16 * context / 1e3)
        step = _STEP_MS[system] * (1 + (context / 2048 if system == "transformer" else 0))
        case = Case(system, _step_backend(backend), "1.3b", "generate", 512, context, timing="graph")
        if system == "transformer" and context > 8192:
            reason = "KV cache: 512 sequences of this length need 201 GB, 61 GB are free"
            yield "fig15-generate", lost(case, "oom", reason)
        else:
            yield "fig15-generate", ok(case, step)


def _step_backend(backend: str) -> str:
    return "triton-dual" if backend == "thunderkittens" else backend


def _fig20() -> SuiteRecords:
    suite = "fig20-throughput"
    for (system, backend), power in product(PAPER_SYSTEMS, range(11)):
        batch = 1 << power
        case = Case(system, _step_backend(backend), "1.3b", "generate", batch, 2048, timing="graph")
        if batch > (256 if system == "transformer" else 512):
            yield suite, lost(case, "oom", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.00 GiB")
        else:
            latency = 2.2 + _STEP_MS[system] * batch / 512 + (batch**1.3 / 400 if system == "transformer" else 0)
            yield suite, ok(case, latency)
    for (system, backend), power in product(PAPER_SYSTEMS, range(7)):
        batch = 1 << power
        case = Case(system, backend, "1.3b", "forward", batch, 2048)
        if batch > 32:
            yield suite, lost(case, "oom", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.00 GiB")
        else:
            yield suite, ok(case, _FORWARD_US[system] * batch * 2.048 * (1 + 0.7 / batch))


def _fig8() -> SuiteRecords:
    for part, power in product("wz", range(9)):
        mini_batch = 1 << power
        latency = 12 / mini_batch**0.7 + 1 if part == "w" else 1.5 + mini_batch / 40
        options = (("part", part), ("scope", "layer"), *((("mini_batch", mini_batch),) if mini_batch != 16 else ()))
        case = Case("ttt-linear", "torch", "1.3b", "forward", 16, 2048, options=options)
        yield "fig8-minibatch", ok(case, latency, spread=0.05)


def _dual_and_primal() -> SuiteRecords:
    systems = ("ttt-linear", "ttt-mlp")
    for system, form, context in product(systems, ("dual", "primal"), [2048, 4096, 8192, 16384]):
        options = (("scope", "layer"), *((("form", form),) if form == "primal" else ()))
        case = Case(system, "torch", "1.3b", "forward", 16, context, options=options)
        latency = context / 500 * (1 + systems.index(system)) * (4.1 if form == "primal" else 1)
        yield "dual-vs-primal", ok(case, latency)


def _requests() -> SuiteRecords:
    for (system, backend), prompt in product(PAPER_SYSTEMS, [512 << step for step in range(7)]):
        case = Case(system, backend, "1.3b", "request", 16, prompt)
        if system == "mamba":
            reason = "mamba_ssm cannot be imported: No module named 'mamba_ssm'"
            yield "prompt-then-128", lost(case, "skipped", reason)
        else:
            first, step = _FORWARD_US[system] * prompt * 16 / 1e3, _STEP_MS[system] / 2
            times = {"time_to_first_token_ms": first, "inter_token_latency_ms": step}
            times |= {"time_to_first_token_ms_low": 0.9 * first, "time_to_first_token_ms_high": 1.2 * first}
            yield "prompt-then-128", ok(case, first + 128 * step, tokens=16 * 128, metrics=times)


def work(bytes_moved: float, flops: float, **metrics: float) -> dict[str, float]:
    return {"bytes": bytes_moved, "flops": flops, "copy_gbs": 3000.0, "product_tflops": 600.0} | metrics


def kernels() -> SuiteRecords:
    compiled = {"launches": 2, "registers": 168, "spilled_bytes": 0, "shared_bytes": 190_000}
    compiled |= {"sequences_that_fit": 5207, "state_bytes": 33_554_432, "energy_j_per_token": 0.0125}
    layer: dict[str, Any] = {"timing": "graph", "l2": "cold", "options": (("scope", "layer"),)}
    for system, backend, context in product(("ttt-linear", "ttt-mlp"), ("thunderkittens", "torch"), (2048, 8192)):
        case = Case(system, backend, "1.3b", "forward", 16, context, state_dtype="float32", **layer)
        lower_bound_ms = context / 10_000
        own = compiled if backend == "thunderkittens" else {}
        metrics = work(lower_bound_ms * 3e9, lower_bound_ms * 6e10, **own)
        yield "kernel-forward", ok(case, lower_bound_ms * (1.5 if own else 30), metrics=metrics)
    for form, state, batch in product(("dual", "primal"), ("float32-planes", "bfloat16"), (64, 128, 512)):
        if state == "bfloat16" and batch == 128:
            continue
        case = Case("ttt-linear", f"triton-{form}", "1.3b", "generate", batch, 1, state_dtype=state, **layer)
        lower_bound_ms = batch / 10_000 * (3 if form == "primal" else 1)
        metrics = work(lower_bound_ms * 3e9, lower_bound_ms * 1e9, registers=96)
        yield "kernel-generate", ok(case, lower_bound_ms * 1.25, metrics=metrics)


def fidelity() -> SuiteRecords:
    for state, distance in (("float32", 1e-3), ("bfloat16", 2.5e-2)):
        how: dict[str, Any] = {"state_dtype": state, "timing": "graph", "options": (("compare", "float64"),)}
        metrics = {
            "parameters": _PARAMETERS["125m"],
            "compared_tokens": 2048,
            "total_variation_mean": distance,
            "total_variation_max": 3 * distance,
            "total_variation_first": distance / 2,
            "total_variation_last": 2 * distance,
            "argmax_disagreement": 10 * distance,
        }
        case = Case("ttt-linear", "triton-dual", "125m", "generate", 4, 2048, **how)
        yield "generate-fidelity", ok(case, 1.5, metrics=metrics)


def _quick() -> SuiteRecords:
    for (system, backend), size in product([*PAPER_SYSTEMS, ("ttt-linear", "torch")], [256, 512, 1024]):
        yield "quick", ok(Case(system, backend, "125m", "forward", 4, size), _FORWARD_US[system] * size / 90)
        batch = size // 64
        case = Case(system, backend, "125m", "generate", batch, 512)
        if backend == "torch" and batch == 16:
            yield "quick", lost(case, "incorrect", "out: relative error 0.031, limit 0.02")
        else:
            yield "quick", ok(case, _STEP_MS[system] * (1 + batch / 30), count=5)


def hostile() -> Made:
    script = "</script><script>window.injected = 1</script>"
    image = '<img src=x onerror="window.injected = 2">'
    link = '<a href="javascript:window.injected=3">x</a><b>bold</b>'
    options = ((f"{image}", script), ("=cmd|' /C calc'!A0", "@SUM(1)"), ("__proto__", "x"), ("batch", "mine"))
    machine = environment(device=f"{link}{script}", commit=f'"><svg onload=window.injected=4>{script}')
    named = {"size": f"{image}%{{x}}", "options": options}
    records = [
        (
            "quick",
            ok(
                Case(f"{link}{image}", f"{script}${{1}}", phase="forward", batch=4, context=context, **named),
                3.0,
                environment=machine,
            ),
        )
        for context in (256, 512)
    ]
    broken = Case(
        '"onmouseover="window.injected=5', "&lt;b&gt;", phase="generate", batch=1, context=0, dtype="<script>", **named
    )
    reason = f'=HYPERLINK("x")\x1b[31m {script} {image}\u2028'
    return made([*records, ("=suite<b>", Record(broken, "failed", reason, environment=machine))])


def many(count: int = 10_000) -> Made:
    pairs = []
    axes = product(("quick", "fig15-forward", "kernel-forward"), PAPER_SYSTEMS, range(1, 2 + count // 12))
    for index, (suite, (system, backend), context) in enumerate(axes):
        if index == count:
            break
        case = Case(system, backend, suite, "forward", 16, 16 * context)
        latency = _FORWARD_US[system] * context
        pairs.append((suite, ok(case, latency) if index % 25 else lost(case, "oom", f"no {index} GB")))
    return made(pairs)
