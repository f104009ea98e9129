"""A run's peaks per device: highest GB/s and TFLOP/s of records and profiled kernels."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from harness.schema.profile import Kernel, Profile, Region
from harness.schema.record import Record
from harness.schema.work import PEAKS

_MIN_TIME_SHARE = 0.005  # of the kernels' time; a kernel with a smaller share cannot raise a peak
_MAX_RATE = 1.25  # relative to the measured peak; a higher rate was miscounted
_MAX_OFF = 0.15  # relative to the mean time; if counted launches are further off, they may have done other work


def common_peaks(records: Iterable[Record], profiles: Iterable[Profile] = ()) -> dict[str, dict[str, float]]:
    """Return {device: {"copy_gbs": highest GB/s, "product_tflops": highest TFLOP/s}} of a run.

    All systems share a device's peaks, because a power-capped GPU's measured GEMM rate varies.
    """
    highest: dict[str, dict[str, float]] = defaultdict(dict)
    seen = [(record.environment, record.metrics) for record in records]
    seen += [(profile.environment, raised_peaks(profile)) for profile in profiles]
    for environment, rates in seen:
        most = highest[str(environment.get("device"))]
        for name in PEAKS:
            if value := rates.get(name):
                most[name] = max(value, most.get(name, 0.0))
    return highest


def with_common_peaks(profiles: Sequence[Profile], records: Iterable[Record] = ()) -> list[Profile]:
    """Return the profiles, each with the highest peaks of its device over all profiles and records."""
    highest = common_peaks(records, profiles)
    return [replace(each, peaks={**highest[str(each.environment.get("device"))]}) for each in profiles]


def raised_peaks(region: Region) -> dict[str, float | None]:
    """Return the region's peaks, each raised to the fastest kernel's rate if this is higher.

    On a power-capped GPU, a GEMM of the case can be faster than the GEMM that measures the peak.
    A kernel counts only if it has hardware counters, enough of the time (`_MIN_TIME_SHARE`) and a plausible rate
    (`_MAX_RATE`). Its mean times under Nsight Compute and in the trace must be close (`_MAX_OFF`).
    """
    total = sum(kernel.time_us for kernel in region.kernels)
    long = [kernel for kernel in region.kernels if kernel.time_us > _MIN_TIME_SHARE * total and _counted_alike(kernel)]
    found = dict(region.peaks)
    for name, done, per_us in (("copy_gbs", "dram_bytes", 1e3), ("product_tflops", "operations", 1e6)):
        if measured := found.get(name):
            rates = [(getattr(each, done) or 0.0) / each.mean_us / per_us for each in long]
            found[name] = max([measured, *(rate for rate in rates if rate <= _MAX_RATE * measured)])
    return found


def _counted_alike(kernel: Kernel) -> bool:
    return kernel.counters is not None and abs(kernel.counters.time_us - kernel.mean_us) <= _MAX_OFF * kernel.mean_us
