"""Parse `--gpus`."""

import re

from bench.errors import UserError
from harness.measure.nvml import visible_gpus

_GPU = re.compile(r"0|[1-9][0-9]*|(GPU|MIG)-.+")  # a number or UUID, as in CUDA_VISIBLE_DEVICES


def selected_gpus(option: str | None, device: str, *, here: bool = True) -> list[str]:
    """Parse `all` or a list such as `0,2` to names of GPUs as in CUDA_VISIBLE_DEVICES; None gives [].

    device: the run's. here: False plans for another machine, so this one may lack the GPUs.
    Raises UserError for a word that names no GPU, a repeated or missing GPU, or a device other than "cuda".
    """
    if option is None:
        return []
    there = visible_gpus()
    wanted = there if option == "all" else [name.strip() for name in option.split(",")]
    for name in wanted:
        if not _GPU.fullmatch(name):
            raise UserError(f"--gpus {option}: {name!r} is no GPU; use all, or numbers of nvidia-smi, such as 0,1")
        if wanted.count(name) > 1:
            raise UserError(f"--gpus {option}: names GPU {name} twice")
    if here and not there:
        raise UserError(f"--gpus {option}: no CUDA GPU was found on this machine; leave --gpus out to use the CPU")
    if device != "cuda":
        raise UserError(f"--gpus {option}: this run is on the CPU; add --device cuda")
    for name in wanted:
        if here and name not in there:
            raise UserError(f"--gpus {option}: there is no GPU {name!r} to use; there are {', '.join(there)}")
    return wanted
