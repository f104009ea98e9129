"""Records as a real run might leave them, from formulas and noise; for tests only, measured nowhere."""

import random
from collections.abc import Iterator
from functools import lru_cache
from itertools import product

from harness.case import Case
from harness.record import Record

H100 = "NVIDIA H100 80GB HBM3"
PAPER_SYSTEMS = (
    ("ttt-linear", "thunderkittens"),
    ("ttt-mlp", "thunderkittens"),
    ("transformer", "vllm"),
    ("mamba", "mamba-ssm"),
)
_FORWARD_US = {"ttt-linear": 4.4, "ttt-mlp": 6.1, "transformer": 4.6, "mamba": 7.8}
_STEP_MS = {"ttt-linear": 5.1, "ttt-mlp": 15.2, "transformer": 9.0, "mamba": 10.7}


@lru_cache
def environment(device: str = H100, commit: str = "3f2a91c04d5be6788a1f0c2d4e6b8a9c0d1e2f34", seed: int = 0) -> dict:
    """About 2 KB, like a snapshot of a GPU machine."""
    chance = random.Random(seed)
    packages = ("torch triton vllm mamba-ssm causal-conv1d flash-attn numpy pandas plotly jinja2 rich typer pydantic "
                "safetensors transformers tokenizers nvidia-cublas-cu13 nvidia-cudnn-cu13 nvidia-nccl-cu13 "
                "nvidia-cuda-runtime-cu13 nvidia-cusparse-cu13 nvidia-cufft-cu13 nvidia-ml-py nvtx einops ninja "
                "apache-tvm-ffi flash-linear-attention huggingface-hub setuptools packaging filelock sympy networkx "
                "nvidia-curand nvidia-cusolver nvidia-cusparselt nvidia-nvjitlink nvidia-nvshmem regex requests "
                "certifi jmespath markdown-it-py mpmath tqdm urllib3 pyyaml psutil xgrammar outlines msgspec fsspec")
    software = {name: f"{len(name)}.{3 * len(name) % 20}.1" for name in packages.split()}
    readings = {
        when: {
            "sm_clock_mhz": chance.choice([1980, 1965, 1755]),
            "memory_clock_mhz": 2619,
            "temperature_c": chance.randint(38, 64),
            "power_w": round(chance.uniform(110, 690), 2),
            "throttle_reasons": chance.choice([[], [], [], ["sw_power_cap"]]),
        }
        for when in ("before", "after")
    }
    gpu = {"name": device, "driver": "580.159.04", "memory_bytes": 85_520_809_984, "sms": 132, "power_limit_w": 700.0}
    cpu = {"model": "Intel(R) Xeon(R) Platinum 8480C", "cores": 16}
    loads = {when: {"load_1m": round(chance.uniform(0.2, 6), 2)} for when in ("before", "after")}
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
    """A measured record whose samples lie about `latency_ms`, some of them late."""
    chance = random.Random(case.key)
    samples = [latency_ms * (1 + abs(chance.gauss(0, spread)) + chance.gauss(0, spread / 4)) for _ in range(count)]
    defaults = {
        "tokens": case.batch * case.context if case.phase == "forward" else case.batch,
        "throttled": [chance.random() < 0.02 for _ in samples],
        "stop": "interval",
        "peak_memory_bytes": int(3e9 + 1e5 * case.batch * max(case.context, 64)),
        "environment": environment(seed=chance.randrange(100)),
        "metrics": {"parameters": 1_310_000_000, "flops": 2.6e9 * case.batch, "bytes": 2.62e9},
        "started_at": f"2026-03-0{chance.randint(1, 4)}T10:{chance.randint(10, 59)}:05+00:00",
        "wall_s": 12.5,
    }
    return Record(case, "ok", samples_ms=samples, **(defaults | fields))


def lost(case: Case, status: str, reason: str) -> Record:
    return Record(case, status, reason, environment=environment(), started_at="2026-03-02T11:00:00+00:00")


def paper() -> list[Record]:
    """Every suite of the paper's figures, with cases that do not fit, fail or cannot run."""
    return [*_fig15(), *_fig20(), *_fig8(), *_dual_and_primal(), *_requests(), *_quick(), *kernels(), *fidelity()]


def _fig15() -> Iterator[Record]:
    contexts = [1024 << step for step in range(6)]
    for (system, backend), context in product(PAPER_SYSTEMS, contexts):
        quadratic = context / 32768 * 8 if system == "transformer" else 0
        case = Case("fig15-forward", system, backend, "1.3b", "forward", 16, context, options=_options(system))
        yield ok(case, (_FORWARD_US[system] + quadratic) * 16 * context / 1e3)
        step = _STEP_MS[system] * (1 + (context / 2048 if system == "transformer" else 0))
        case = Case("fig15-generate", system, backend, "1.3b", "generate", 512, context, timing="graph")
        if system == "transformer" and context > 8192:
            yield lost(case, "oom", "KV cache: 512 sequences of this length need 201 GB, 61 GB are free")
        else:
            yield ok(case, step)


def _fig20() -> Iterator[Record]:
    for (system, backend), power in product(PAPER_SYSTEMS, range(11)):
        batch = 1 << power
        case = Case("fig20-throughput", system, backend, "1.3b", "generate", batch, 2048, timing="graph",
                    options=(("sweep", "batch"),))
        if batch > (256 if system == "transformer" else 512):
            yield lost(case, "oom", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.00 GiB")
        else:
            yield ok(case, 2.2 + _STEP_MS[system] * batch / 512 + (batch**1.3 / 400 if system == "transformer" else 0))
    for (system, backend), power in product(PAPER_SYSTEMS, range(7)):
        batch = 1 << power
        case = Case("fig20-throughput", system, backend, "1.3b", "forward", batch, 2048, options=(("sweep", "batch"),))
        if batch > 32:
            yield lost(case, "oom", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.00 GiB")
        else:
            yield ok(case, _FORWARD_US[system] * batch * 2.048 * (1 + 0.7 / batch))


def _fig8() -> Iterator[Record]:
    for part, power in product("wz", range(9)):
        mini_batch = 1 << power
        latency = 12 / mini_batch**0.7 + 1 if part == "w" else 1.5 + mini_batch / 40
        yield ok(Case("fig8-minibatch", "ttt-linear", "torch", "1.3b", "forward", 16, 2048,
                      options=(("mini_batch", mini_batch), ("part", part))), latency, spread=0.05)


def _dual_and_primal() -> Iterator[Record]:
    systems = ("ttt-linear", "ttt-mlp")
    for system, form, context in product(systems, ("dual", "primal"), [2048, 4096, 8192, 16384]):
        options = (("form", form), ("mini_batch", 16))
        case = Case("dual-vs-primal", system, "torch", "1.3b", "forward", 16, context, options=options)
        yield ok(case, context / 500 * (1 + systems.index(system)) * (4.1 if form == "primal" else 1))


def _requests() -> Iterator[Record]:
    for (system, backend), prompt in product(PAPER_SYSTEMS, [512 << step for step in range(7)]):
        case = Case("prompt-then-128", system, backend, "1.3b", "request", 16, prompt, options=(("steps", 128),))
        if system == "mamba":
            yield lost(case, "skipped", "mamba-ssm is not installed: pip install 'ttt-bench[mamba]'")
        else:
            yield ok(case, _FORWARD_US[system] * prompt * 16 / 1e3 + 128 * _STEP_MS[system] / 2, tokens=16 * 128)


def work(bytes_moved: float, flops: float, **metrics: float) -> dict[str, float]:
    """Metrics of a kernel on a GPU that copies 3,000 GB/s and multiplies 600 TFLOP/s."""
    return {"bytes": bytes_moved, "flops": flops, "copy_gbs": 3000.0, "product_tflops": 600.0} | metrics


def kernels() -> Iterator[Record]:
    """The kernel suites: forward at two thirds of its floor, generate in both forms and two state precisions."""
    compiled = {"launches": 2, "registers": 168, "spilled_bytes": 0, "shared_bytes": 190_000}
    compiled["sequences_that_fit"] = 5207
    for system, backend, context in product(("ttt-linear", "ttt-mlp"), ("thunderkittens", "torch"), (2048, 8192)):
        case = Case("kernel-forward", system, backend, "1.3b", "forward", 16, context, state_dtype="float32",
                    timing="graph", l2="cold", options=(("scope", "layer"),))
        floor_ms = context / 10_000
        own = compiled if backend == "thunderkittens" else {}
        yield ok(case, floor_ms * (1.5 if own else 30), metrics=work(floor_ms * 3e9, floor_ms * 6e10, **own))
    for form, state, batch in product(("dual", "primal"), ("float32-planes", "bfloat16"), (64, 128, 512)):
        if state == "bfloat16" and batch == 128:
            continue
        case = Case("kernel-generate", "ttt-linear", f"triton-{form}", "1.3b", "generate", batch, 1, state_dtype=state,
                    timing="graph", l2="cold", options=(("scope", "layer"),))
        floor_ms = batch / 10_000 * (3 if form == "primal" else 1)
        yield ok(case, floor_ms * 1.25, metrics=work(floor_ms * 3e9, floor_ms * 1e9, registers=96))


def fidelity() -> Iterator[Record]:
    """Two state precisions compared with the exact model."""
    for state, distance in (("float32", 1e-3), ("bfloat16", 2.5e-2)):
        case = Case("generate-fidelity", "ttt-linear", "triton-dual", "125m", "generate", 4, 2048, state_dtype=state,
                    timing="graph", options=(("compare", "float64"),))
        yield ok(case, 1.5, metrics={
            "parameters": 130_000_000, "compared_tokens": 2048, "total_variation_mean": distance,
            "total_variation_max": 3 * distance, "total_variation_first": distance / 2,
            "total_variation_last": 2 * distance, "argmax_disagreement": 10 * distance,
        })


def _quick() -> Iterator[Record]:
    for (system, backend), size in product([*PAPER_SYSTEMS, ("ttt-linear", "torch")], [256, 512, 1024]):
        yield ok(Case("quick", system, backend, "125m", "forward", 4, size), _FORWARD_US[system] * size / 90)
        batch = size // 64
        case = Case("quick", system, backend, "125m", "generate", batch, 512)
        if backend == "torch" and batch == 16:
            yield lost(case, "gate", "out: relative error 0.031, limit 0.02")
        else:
            yield ok(case, _STEP_MS[system] * (1 + batch / 30), count=5)


def _options(system: str) -> tuple:
    return (("mini_batch", 16),) if system.startswith("ttt") else ()


def hostile() -> list[Record]:
    """Records whose words try to become markup, script, formulas or terminal commands."""
    script = "</script><script>window.injected = 1</script>"
    image = '<img src=x onerror="window.injected = 2">'
    link = '<a href="javascript:window.injected=3">x</a><b>bold</b>'
    options = ((f"{image}", script), ("=cmd|' /C calc'!A0", "@SUM(1)"), ("__proto__", "x"), ("batch", "mine"))
    place = environment(device=f"{link}{script}", commit=f'"><svg onload=window.injected=4>{script}')
    named = {"size": f"{image}%{{x}}", "options": options}
    records = [
        ok(Case("quick", f"{link}{image}", f"{script}${{1}}", phase="forward", batch=4, context=context, **named), 3.0,
           environment=place)
        for context in (256, 512)
    ]
    broken = Case("=suite<b>", '"onmouseover="window.injected=5', "&lt;b&gt;", phase="generate", batch=1, context=0,
                  dtype="<script>", **named)
    return [*records, Record(broken, "failed", f"=HYPERLINK(\"x\")\x1b[31m {script} {image}\u2028", environment=place)]


def many(count: int = 10_000) -> list[Record]:
    """A long run: `count` records of 30 samples and 2 KB of environment each."""
    records = []
    axes = product(("quick", "fig15-forward", "kernel-forward"), PAPER_SYSTEMS, range(1, 2 + count // 12))
    for index, (suite, (system, backend), context) in enumerate(axes):
        if index == count:
            break
        case = Case(suite, system, backend, "1.3b", "forward", 16, 16 * context, options=_options(system))
        records.append(ok(case, _FORWARD_US[system] * context) if index % 25 else lost(case, "oom", f"no {index} GB"))
    return records
