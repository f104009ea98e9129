"""The ceilings by which floors of a run are told: what processes measured, or what a kernel did where that is more."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from harness.schema.profile import Kernel, Profile, Region
from harness.schema.record import Record
from reports.roofline import CEILINGS

_TELLS = 0.005  # of the kernels' time, from which a kernel's rate may be a ceiling
_PLAUSIBLE = 1.25  # of the measured ceiling: a kernel beyond that is miscounted
# Of the mean time, within which the counted launches took theirs: else they may have done other work. Narrower than
# `profile_region.UNLIKE`, as a ceiling moves the floors of the whole run and not a kernel's own numbers alone.
_LIKE = 0.15


def common_ceilings(records: Iterable[Record], profiles: Iterable[Profile] = ()) -> dict[str, dict[str, float]]:
    """By the device's name, the highest rates that any process measured or that a counted kernel reached.

    So the shares of systems can be compared: each process measures them once before its first case, and a GPU at its
    power cap computes the same product at rates that are up to a fifth apart.
    """
    highest: dict[str, dict[str, float]] = defaultdict(dict)
    seen = [(record.environment, record.metrics) for record in records]
    seen += [(profile.environment, reached(profile)) for profile in profiles]
    for environment, rates in seen:
        most = highest[str(environment.get("device"))]
        for name in CEILINGS:
            if value := rates.get(name):
                most[name] = max(value, most.get(name, 0.0))
    return highest


def with_common_ceilings(profiles: Sequence[Profile], records: Iterable[Record] = ()) -> list[Profile]:
    """The profiles by the common ceilings of them and of a run's records; one of no known device by its own."""
    highest = common_ceilings(records, profiles)

    def of(profile: Profile) -> dict[str, float | None]:
        device = profile.environment.get("device")
        return {**highest[str(device)]} if device else reached(profile)

    return [replace(each, ceilings=of(each)) for each in profiles]


def reached(region: Region) -> dict[str, float | None]:
    """The ceilings measured with the region, or what a kernel of it did where that is more.

    A GPU at its power cap computes products the faster, the less its other kernels take: by up to 15%.
    """
    total = sum(kernel.time_us for kernel in region.kernels)
    long = [kernel for kernel in region.kernels if kernel.time_us > _TELLS * total and _counted_alike(kernel)]
    found = dict(region.ceilings)
    for name, done, per_us in (("copy_gbs", "dram_bytes", 1e3), ("product_tflops", "operations", 1e6)):
        if measured := found.get(name):
            rates = [(getattr(each, done) or 0.0) / each.mean_us / per_us for each in long]
            found[name] = max([measured, *(rate for rate in rates if rate <= _PLAUSIBLE * measured)])
    return found


def _counted_alike(kernel: Kernel) -> bool:
    return kernel.counters is not None and abs(kernel.counters.time_us - kernel.mean_us) <= _LIKE * kernel.mean_us
