"""Query the GPU through NVML: properties, clocks, throttling, temperature and energy."""

import hashlib
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import pairwise
from threading import Event, Thread
from typing import Any

VARIABLE = "CUDA_VISIBLE_DEVICES"
_UUID = ("GPU-", "MIG-")
QUERY_EVERY_S = 0.02  # seconds between queries: a query per sample would leave the GPU idle and let its clocks rise

# Reasons for clocks below their settings. Idle, application and display clocks are not throttling.
_THROTTLE = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}
THERMAL = frozenset({"sw_thermal_slowdown", "hw_thermal_slowdown"})


class Gpu:
    """One GPU, queried through NVML; a value that the driver lacks is None, not an error."""

    def __init__(self, pynvml: Any, handle: Any) -> None:
        self._nvml = pynvml
        self._handle = handle
        self._throttled, self._query_at = False, -math.inf
        self.seen_reasons: set[str] = set()  # reasons seen by `throttled`
        self.peak_celsius: float | None = None  # during a thermal slowdown

    def constants(self) -> dict[str, Any]:
        """Return constant properties by name, such as driver, memory_bytes and power_limit_w."""
        capability = self._query("nvmlDeviceGetCudaComputeCapability")
        ecc = self._query("nvmlDeviceGetEccMode")
        uuid = self._query("nvmlDeviceGetUUID") or ""
        return {
            "name": self._query("nvmlDeviceGetName") or "",
            "driver": _quietly(self._nvml.nvmlSystemGetDriverVersion) or "",
            "memory_bytes": getattr(self._query("nvmlDeviceGetMemoryInfo"), "total", None),
            "device_id": hashlib.sha256(uuid.encode()).hexdigest()[:8] if uuid else "",  # does not reveal the UUID
            "power_limit_w": self._thousandth("nvmlDeviceGetEnforcedPowerLimit"),
            "max_sm_clock_mhz": self._query("nvmlDeviceGetMaxClockInfo", self._nvml.NVML_CLOCK_SM),
            "ecc": None if ecc is None else bool(ecc[0]),  # ecc[1] takes effect at the next boot
            "compute_capability": capability and ".".join(map(str, capability)),
        }

    def readings(self) -> dict[str, Any]:
        """Return clocks in MHz, temperature in °C, power in W and throttle reasons, by name."""
        return {
            "sm_clock_mhz": self._query("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": self._query("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_MEM),
            "temperature_c": self._celsius(),
            "power_w": self._thousandth("nvmlDeviceGetPowerUsage"),
            "throttle_reasons": self.throttle_reasons(),
        }

    def throttle_reasons(self) -> list[str]:
        bits = self._query("nvmlDeviceGetCurrentClocksEventReasons") or 0
        return [name for bit, name in _THROTTLE.items() if bits & bit]

    def throttled(self) -> bool:
        """Whether the GPU is throttled or power-capped, by a query that is at most 20 ms old.

        Adds the reasons to `seen_reasons`. Updates `peak_celsius`, the peak temperature during thermal throttling.
        """
        now = time.monotonic()
        if now >= self._query_at:
            reasons = self.throttle_reasons()
            self.seen_reasons.update(reasons)
            if THERMAL.intersection(reasons):
                self.peak_celsius = max(filter(None, (self.peak_celsius, self._celsius())), default=None)
            self._throttled, self._query_at = bool(reasons), now + QUERY_EVERY_S
        return self._throttled

    def reset(self) -> None:
        """Clear the throttle reasons and the peak temperature that `throttled` stored."""
        self.seen_reasons.clear()
        self.peak_celsius = None
        self._query_at = -math.inf

    def energy_j(self) -> float | None:
        """Return the joules that the GPU has used since its driver was loaded; None if unknown."""
        return self._thousandth("nvmlDeviceGetTotalEnergyConsumption")

    def _celsius(self) -> int | None:
        found: int | None = self._query("nvmlDeviceGetTemperature", self._nvml.NVML_TEMPERATURE_GPU)
        return found

    def _thousandth(self, name: str) -> float | None:
        value = self._query(name)
        return None if value is None else value / 1e3

    def _query(self, name: str, *arguments: Any) -> Any:
        return _quietly(lambda: getattr(self._nvml, name)(self._handle, *arguments))


def open_gpu(visible: str | None = None) -> Gpu | None:
    """Return the GPU that `visible` names; None if it is not found or NVML is not available.

    visible: a list in the format of CUDA_VISIBLE_DEVICES, such as "1,2"; its first GPU is returned.
        None: torch's current GPU or, before torch uses CUDA, the first GPU that this process can use.
    """
    pynvml = _initialised()
    handle = None if pynvml is None else _quietly(lambda: _handle(pynvml, visible))
    return None if handle is None else Gpu(pynvml, handle)


def visible_gpus() -> list[str]:
    """Return the GPUs that this process can use, each once, as an index or a UUID."""
    visible = os.environ.get(VARIABLE)
    count = _quietly(lambda: _initialised().nvmlDeviceGetCount()) or 0
    names = [str(number) for number in range(count)] if visible is None else visible.split(",")
    return [name for name in dict.fromkeys(map(str.strip, names)) if name and open_gpu(name)]


@lru_cache(maxsize=1)
def _initialised() -> Any:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no package, library, driver or permission
        return None
    return pynvml


def _handle(pynvml: Any, visible: str | None) -> Any:
    uuid = _uuid_in_use() if visible is None else ""
    if uuid:
        names = [uuid] if uuid.startswith(_UUID) else [kind + uuid for kind in _UUID]
        return next(filter(None, (_by_uuid(pynvml, name) for name in names)), None)
    visible = os.environ.get(VARIABLE) if visible is None else visible
    if visible is None:
        return pynvml.nvmlDeviceGetHandleByIndex(0)
    first = visible.split(",")[0].strip()
    if first.isdecimal():
        return pynvml.nvmlDeviceGetHandleByIndex(int(first))
    return _by_uuid(pynvml, first) if first.startswith(_UUID) else None


def _by_uuid(pynvml: Any, name: str) -> Any:
    if found := _quietly(lambda: pynvml.nvmlDeviceGetHandleByUUID(name)):
        return found
    # CUDA also accepts a unique prefix of a UUID.
    devices = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    named = [device for device in devices if pynvml.nvmlDeviceGetUUID(device).startswith(name)]
    return named[0] if len(named) == 1 else None


def _uuid_in_use() -> str:
    # Not the index: NVML and CUDA can number GPUs differently.
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return ""
    return str(getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", ""))


def _quietly(query: Callable[[], Any]) -> Any:
    try:
        return query()
    except Exception:  # NVML raises one class per error code, such as "not supported"
        return None


def is_hot(environment: Mapping[str, Any]) -> bool:
    """Whether the GPU was thermally throttled during a case, by the `environment` of its record."""
    return bool(THERMAL.intersection(_after(environment).get("throttle_reasons") or ()))


def heat_note(environment: Mapping[str, Any]) -> str:
    """Return "thermally throttled, at 88 °C" (°C only if known); call it only if `is_hot`."""
    celsius = _after(environment).get("temperature_c")
    return f"thermally throttled, at {celsius:.0f} °C" if celsius else "thermally throttled"


def _after(environment: Mapping[str, Any]) -> Mapping[str, Any]:
    return (environment.get("gpu") or {}).get("after") or {}


READ_EVERY_S = 0.02  # seconds between reads of the energy counter
MAX_READ_GAP_S = 0.05  # maximum seconds between two reads that bracket a refresh, whose time is unknown otherwise
MIN_REFRESHES_S = 0.7  # minimum seconds between first and last refresh, to limit the error
MIN_BLOCK_S = 1.0  # seconds of a block that are enough for refreshes `MIN_REFRESHES_S` apart
MIN_FILLED = 0.9  # minimum share of the block that samples fill


class EnergyMeter:
    """Context manager that measures energy per token; without a GPU, it does nothing.

    A thread reads the driver's energy counter, which is refreshed about ten times per second. Mean power is the
    counter's difference between the first and last refresh, divided by the time between them.
    """

    def __init__(self, gpu: Gpu | None) -> None:
        self._gpu = gpu
        self._over = Event()
        self._reads: list[tuple[float, float]] = []  # time, joules

    def __enter__(self) -> "EnergyMeter":
        if self._gpu:
            self._thread = Thread(target=self._watch, args=(self._gpu,), daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._gpu:
            self._thread.join()

    def per_token(self, tokens: int, seconds: float) -> dict[str, float | None]:
        """Return {"energy_j_per_token": mean power times time per token}, or {} if unreliable.

        tokens, seconds: totals over all samples. The energy is unreliable if the samples fill less than 90% of the
        `with` block, or if the counter's first and last refresh are less than 0.7 s apart.
        """
        refreshes = [
            read
            for (before_s, before_j), read in pairwise(self._reads)
            if read[1] != before_j and read[0] - before_s <= MAX_READ_GAP_S
        ]
        if len(refreshes) < 2 or not tokens:
            return {}
        (first_s, first_j), (last_s, last_j) = refreshes[0], refreshes[-1]
        if seconds < MIN_FILLED * (self._reads[-1][0] - self._reads[0][0]) or last_s - first_s < MIN_REFRESHES_S:
            return {}
        return {"energy_j_per_token": (last_j - first_j) / (last_s - first_s) * seconds / tokens}

    def add(self, now: float, joules: float | None) -> None:
        if joules is not None:
            self._reads.append((now, joules))

    def _watch(self, gpu: Gpu) -> None:
        while not self._over.wait(READ_EVERY_S):
            joules = gpu.energy_j()
            self.add(time.monotonic(), joules)
