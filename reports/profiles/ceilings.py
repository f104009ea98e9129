"""The ceilings by which profiles are told: what they measured, or what a kernel of theirs did where that is more."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from harness.profile_record import Profile
from harness.profile_region import Kernel, Region

_TELLS = 0.005  # of the kernels' time, from which a kernel's rate may be a ceiling
_PLAUSIBLE = 1.25  # of the measured ceiling: a kernel beyond that is miscounted
_LIKE = 0.15  # of the mean time, within which the counted launches took theirs: else they may have done other work


def with_common_ceilings(profiles: Sequence[Profile]) -> list[Profile]:
    """The profiles with the highest ceilings of those made on GPUs of one model: so their floors can be compared."""
    highest: dict[str, dict[str, float | None]] = defaultdict(dict)
    for profile in profiles:
        most = highest[_model_of(profile)]
        for name, value in reached(profile).items():
            most[name] = max(filter(None, (most.get(name), value)), default=None)
    return [replace(profile, ceilings=highest[_model_of(profile)]) for profile in profiles]


def reached(region: Region) -> dict[str, float | None]:
    """The ceilings measured with the region, or what a kernel of it did where that is more.

    A GPU at its power cap computes products the faster, the less its other kernels take: by up to 15%.
    """
    total = sum(kernel.time_us for kernel in region.kernels)
    long = [kernel for kernel in region.kernels if kernel.time_us > _TELLS * total and _counted_alike(kernel)]
    found = dict(region.ceilings)
    for name, done, per_us in (("copy_gbs", "dram_bytes", 1e3), ("product_tflops", "operations", 1e6)):
        if measured := found.get(name):
            rates = [(getattr(each, done) or 0.0) * each.launches / each.time_us / per_us for each in long]
            found[name] = max([measured, *(rate for rate in rates if rate <= _PLAUSIBLE * measured)])
    return found


def _counted_alike(kernel: Kernel) -> bool:
    mean_us = kernel.time_us / kernel.launches
    return kernel.counters is not None and abs(kernel.counters.time_us - mean_us) <= _LIKE * mean_us


def _model_of(profile: Profile) -> str:
    return str(profile.environment.get("device") or profile.case.key)
