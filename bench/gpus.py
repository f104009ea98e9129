"""Which GPUs does `--gpus` name?"""

import re

from bench.errors import UserError
from harness.measure.nvml import visible_gpus

_GPU = re.compile(r"0|[1-9][0-9]*|(GPU|MIG)-.+")  # as CUDA_VISIBLE_DEVICES names one: by its number or its UUID


def gpus_asked(asked: str | None, device: str, *, here: bool = True) -> list[str]:
    """The GPUs of `all` or `0,2`, as CUDA_VISIBLE_DEVICES names them; none for None.

    here: whether this machine must have them, which it need not to plan for another one; `all` are those it has.
    """
    if asked is None:
        return []
    there = visible_gpus()
    wanted = there if asked == "all" else [name.strip() for name in asked.split(",")]
    for name in wanted:
        if not _GPU.fullmatch(name):
            raise UserError(f"--gpus {asked}: {name!r} is no GPU; say all, or nvidia-smi's numbers, such as 0,1")
        if wanted.count(name) > 1:
            raise UserError(f"--gpus {asked}: names GPU {name} twice")
    if here and not there:
        raise UserError(f"--gpus {asked}: no CUDA GPU was found on this machine; leave --gpus out to use the CPU")
    if device != "cuda":
        raise UserError(f"--gpus {asked}: this run is on the CPU; say --device cuda")
    for name in wanted:
        if here and name not in there:
            raise UserError(f"--gpus {asked}: there is no GPU {name!r} to use; there are {', '.join(there)}")
    return wanted
