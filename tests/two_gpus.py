"""A fake of NVML's Python module that reports two GPUs."""

from types import ModuleType


class TwoGpus(ModuleType):
    """Stands in for the module pynvml. `there` maps indices to UUIDs; tests remove an entry to simulate a lost GPU."""

    NVML_CLOCK_SM = NVML_CLOCK_MEM = NVML_TEMPERATURE_GPU = 0

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.there = {"0": "GPU-aa", "1": "GPU-bb"}
        self.nvmlInit = lambda: None
        self.nvmlSystemGetDriverVersion = lambda: "580.1"
        self.nvmlDeviceGetCount = lambda: 2
        self.nvmlDeviceGetHandleByIndex = lambda number: self.there[str(number)]
        self.nvmlDeviceGetHandleByUUID = lambda uuid: next(each for each in self.there.values() if each == uuid)
        self.nvmlDeviceGetUUID = lambda handle: handle
        self.nvmlDeviceGetName = lambda handle: f"name of {handle}"
