"""Read by NVML what the GPU reports about itself during a measurement; opened only where there is a GPU."""

import hashlib
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from threading import Event, Thread
from typing import Any

VARIABLE = "CUDA_VISIBLE_DEVICES"
_UUID = ("GPU-", "MIG-")
# The driver may take 0.1 ms to say whether it throttles the GPU, which rests meanwhile: asked after each sample of
# 0.8 ms, one at its power cap ran 4% faster than without a rest.
ASKED_EVERY_S = 0.02

# Reasons that slow the GPU down against its settings: power cap, hardware, thermal (software, hardware), power brake.
# Idle clocks, application clocks and display clocks are settings or rest, not throttling.
_THROTTLE = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}
THERMAL = frozenset({"sw_thermal_slowdown", "hw_thermal_slowdown"})


class Gpu:
    """One GPU through NVML. What the driver does not answer is None, never an error."""

    def __init__(self, pynvml: Any, handle: Any) -> None:
        self._nvml = pynvml
        self._handle = handle
        self._throttled, self._ask_at = False, -math.inf
        self.slowed_by: set[str] = set()  # the reasons that `throttled` has seen
        self.hottest_c: float | None = None  # where heat was one of them

    def constants(self) -> dict[str, Any]:
        """What does not change: name, driver, memory_bytes and so on; compute_capability as "9.0"."""
        capability = self._ask("nvmlDeviceGetCudaComputeCapability")
        ecc = self._ask("nvmlDeviceGetEccMode")
        return {
            "name": _text(self._ask("nvmlDeviceGetName")),
            "driver": _text(_quietly(self._nvml.nvmlSystemGetDriverVersion)),
            "memory_bytes": getattr(self._ask("nvmlDeviceGetMemoryInfo"), "total", None),
            "device_id": _digest(_text(self._ask("nvmlDeviceGetUUID"))),
            "power_limit_w": self._thousandth("nvmlDeviceGetEnforcedPowerLimit"),
            "max_sm_clock_mhz": self._ask("nvmlDeviceGetMaxClockInfo", self._nvml.NVML_CLOCK_SM),
            "ecc": None if ecc is None else bool(ecc[0]),  # now; the other is from the next boot on
            "compute_capability": capability and ".".join(map(str, capability)),
        }

    def readings(self) -> dict[str, Any]:
        """What changes: clocks in MHz, temperature in degrees Celsius, power in W, throttle_reasons."""
        return {
            "sm_clock_mhz": self._ask("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": self._ask("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_MEM),
            "temperature_c": self._celsius(),
            "power_w": self._thousandth("nvmlDeviceGetPowerUsage"),
            "throttle_reasons": self.throttle_reasons(),
        }

    def throttle_reasons(self) -> list[str]:
        """The names of the reasons why the clocks are below their settings, now."""
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")  # drivers before 535
        return [name for bit, name in _THROTTLE.items() if (bits or 0) & bit]

    def throttled(self) -> bool:
        """Whether the GPU is slowed down, as of at most `ASKED_EVERY_S` ago."""
        now = time.monotonic()
        if now >= self._ask_at:
            reasons = self.throttle_reasons()
            self.slowed_by.update(reasons)
            if THERMAL.intersection(reasons):
                self.hottest_c = max(filter(None, (self.hottest_c, self._celsius())), default=None)
            self._throttled, self._ask_at = bool(reasons), now + ASKED_EVERY_S
        return self._throttled

    def forget(self) -> None:
        """Begin anew to collect what slows the GPU down: the next `throttled` asks."""
        self.slowed_by.clear()
        self.hottest_c = None
        self._ask_at = -math.inf

    def energy_j(self) -> float | None:
        """Joules since the driver was loaded."""
        return self._thousandth("nvmlDeviceGetTotalEnergyConsumption")

    def _celsius(self) -> int | None:
        found: int | None = self._ask("nvmlDeviceGetTemperature", self._nvml.NVML_TEMPERATURE_GPU)
        return found

    def _thousandth(self, name: str) -> float | None:
        """What the driver says in milliwatts or millijoules, in W or J."""
        value = self._ask(name)
        return None if value is None else value / 1e3

    def _ask(self, name: str, *arguments: Any) -> Any:
        return _quietly(lambda: getattr(self._nvml, name)(self._handle, *arguments))


def open_gpu(visible: str | None = None) -> Gpu | None:
    """The GPU that this process uses, or None where there is none or NVML cannot be opened.

    visible: instead, the one that a process with this CUDA_VISIBLE_DEVICES would use.
    """
    pynvml = _initialised()
    handle = None if pynvml is None else _quietly(lambda: _handle(pynvml, visible))
    return None if handle is None else Gpu(pynvml, handle)


def visible_gpus() -> list[str]:
    """Every GPU that this process may use, as CUDA_VISIBLE_DEVICES names it: a number of nvidia-smi, or a UUID."""
    pynvml = _initialised()
    if pynvml is None:
        return []
    visible = os.environ.get(VARIABLE)
    count = _quietly(pynvml.nvmlDeviceGetCount) or 0
    names = [str(number) for number in range(count)] if visible is None else visible.split(",")
    return [name.strip() for name in names if name.strip() and open_gpu(name)]


@lru_cache(maxsize=1)
def _initialised() -> Any:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no package, no library, no driver, no permission: there is no GPU to ask
        return None
    return pynvml


def _handle(pynvml: Any, visible: str | None) -> Any:
    """That of `visible`; without it torch's own device if it has one, else the first of CUDA_VISIBLE_DEVICES."""
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
    """The GPU or MIG device of a UUID, or of the start of one that no other has, as CUDA takes them."""
    if found := _quietly(lambda: pynvml.nvmlDeviceGetHandleByUUID(name)):
        return found
    devices = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    if name.startswith("MIG-"):
        devices = [part for device in devices for part in _mig_devices(pynvml, device)]
    named = [device for device in devices if _text(pynvml.nvmlDeviceGetUUID(device)).startswith(name)]
    return named[0] if len(named) == 1 else None


def _mig_devices(pynvml: Any, device: Any) -> list[Any]:
    count = _quietly(lambda: pynvml.nvmlDeviceGetMaxMigDeviceCount(device)) or 0
    asked = (partial(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, device, index) for index in range(count))
    return [found for found in map(_quietly, asked) if found]


def _uuid_in_use() -> str:
    """The UUID of torch's current device, mostly without its kind; CUDA and NVML may number the devices differently."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return ""
    return str(getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", ""))


def _quietly(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception:  # NVML raises one class per error code, among them "not supported" by this GPU
        return None


def _digest(uuid: str) -> str:
    """8 hexadecimal digits that tell GPUs of one model apart without naming them; "" of no UUID."""
    return hashlib.sha256(uuid.encode()).hexdigest()[:8] if uuid else ""


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""


# Below where heat slowed a GPU down, from which it runs some seconds at its power limit before it is as hot again.
COOLER_C = 15
LONGEST_S = 20.0


def is_hot(environment: Mapping[str, Any]) -> bool:
    """Whether heat slowed the GPU down while a case ran, sampled or profiled; of a stranger's file too."""
    reasons = _reading(environment, "throttle_reasons")
    return isinstance(reasons, list) and any(isinstance(name, str) and name in THERMAL for name in reasons)


def heat_note(environment: Mapping[str, Any]) -> str:
    """What a reader must know of a case that heat slowed down."""
    celsius = _reading(environment, "temperature_c")
    at = f", at {celsius:.0f} °C" if isinstance(celsius, int | float) else ""
    return f"heat slowed the GPU down{at}"


class Cooler:
    """Lets a GPU that heat slowed down rest before the next case."""

    def __init__(self, sleep: Callable[[float], None] = time.sleep, now: Callable[[], float] = time.monotonic) -> None:
        self._sleep, self._now = sleep, now
        self.goal_c: float | None = None  # degrees Celsius; None where it need not rest

    def saw(self, readings: Mapping[str, Any] | None) -> None:
        """Learn from `Gpu.readings`, of before a case or of its end, whether it must rest."""
        reasons, celsius = ((readings or {}).get(name) for name in ("throttle_reasons", "temperature_c"))
        if celsius is not None and THERMAL.intersection(reasons or ()):
            self.goal_c = celsius - COOLER_C

    def rest(self, gpu: Gpu) -> None:
        """Wait until the GPU is as cool as it must be, for at most `LONGEST_S`."""
        end = self._now() + LONGEST_S
        while self.goal_c is not None and self._now() < end:
            celsius = gpu.readings()["temperature_c"]
            if celsius is None or celsius <= self.goal_c:
                break
            self._sleep(0.25)
        self.goal_c = None


def _reading(environment: Mapping[str, Any], name: str) -> Any:
    """One of the GPU right after the last sample; None where there is none."""
    gpu = environment.get("gpu")
    after = gpu.get("after") if isinstance(gpu, Mapping) else None
    return after.get(name) if isinstance(after, Mapping) else None


LOOK_EVERY_S = 0.02
LATE_S = 0.05  # after the look before: the driver, or the thread that samples, held up a look that is later
NEEDS_S = 0.7  # between two refreshes, each seen mostly up to LOOK_EVERY_S late: within 3%; up to LATE_S: 7%
LASTS_S = 1.0  # a block in which refreshes are surely so far apart
FILLS = 0.9  # of the block by samples, or the mean power is that of something else too


class EnergyMeter:
    """What the GPU drew inside of a `with` block.

    The driver refreshes its counter some ten times a second, and a sample or a region begins and ends anywhere between:
    over one second, what is read at both ends is up to 10% off. So a thread sees when it is refreshed, which leaves
    nothing for the sampling to wait for, and the block has the mean power from the first refresh to the last.
    """

    def __init__(self, gpu: Gpu | None) -> None:
        self._gpu = gpu
        self._over = Event()
        self._seen: float | None = None
        self._looks: tuple[float, float] | None = None  # when the first and the last were
        self._refreshes: list[tuple[float, float]] = []

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
        """The metric `energy_j_per_token` of so many in so many seconds; nothing where it is not known well enough.

        Nor where the seconds are fewer than nine tenths of the block's, as those of an engine's steps between prompts.
        """
        if len(self._refreshes) < 2 or not tokens or self._looks is None:
            return {}
        began, ended = self._looks
        if seconds < FILLS * (ended - began):
            return {}
        (first_s, first_j), (last_s, last_j) = self._refreshes[0], self._refreshes[-1]
        if last_s - first_s < NEEDS_S:
            return {}
        return {"energy_j_per_token": (last_j - first_j) / (last_s - first_s) * seconds / tokens}

    def look(self, now: float, joules: float | None) -> None:
        """What the counter says by `now`: a refresh where it says something else than at a look just before."""
        first, before = self._looks or (now, now)
        self._looks = (first, now)
        if joules is None or joules == self._seen:
            return
        if self._seen is not None and now - before <= LATE_S:
            self._refreshes.append((now, joules))
        self._seen = joules

    def _watch(self, gpu: Gpu) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            joules = gpu.energy_j()
            self.look(time.monotonic(), joules)
