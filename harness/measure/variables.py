"""Environment variables: what a program that the suite starts gets, and what a record keeps."""

import os
import re
from collections.abc import Mapping

# Defaults of git and Slurm for somebody's own calls: they redirect git, and override a script that was written.
# GIT_CONFIG_* stays: a container's `safe.directory` stands there.
_FOREIGN = re.compile(r"GIT_(?!CONFIG)|SQUEUE_|SBATCH_|SCANCEL_|SINFO_")
# NVML counts GPUs by their bus, CUDA by speed unless this says otherwise.
DEVICE_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
_CHANGES_SPEED = re.compile(
    r"ATEN_CPU_CAPABILITY|LD_PRELOAD"
    r"|(ONEDNN|DNNL|OMP|GOMP|KMP|MKL|OPENBLAS|CUDA|CUBLAS|TRITON|NVIDIA|PYTORCH|TORCH|VLLM|NCCL|MALLOC)_\w+"
)
_PRIVATE = re.compile(r"\w*_(KEY|TOKEN|DIR|HOME|PATH|SECRET|PASSWORD|IP|HOST|URL)|\w*VISIBLE_DEVICES|CUDA_DEVICE_ORDER")
_LONGEST = 200


def child_environment(added: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of a program that the suite starts; `added` come last."""
    kept = {name: value for name, value in os.environ.items() if not _FOREIGN.match(name)}
    return {**kept, **DEVICE_ORDER, **(added or {})}


def recorded_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that change speed; a value that holds a folder is "..."."""
    return {
        name: "..." if re.search(r"[/\\]", value) else value[:_LONGEST]
        for name, value in sorted(environment.items())
        if _CHANGES_SPEED.fullmatch(name) and not _PRIVATE.fullmatch(name)
    }
