"""A script can profile a `with` block; wrong arguments raise an error before the block runs."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from harness.profiling.block import profiled
from harness.schema.profile import ProfileError


def test_a_script_profiles_a_block() -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(32, 32)
    with profiled("cpu", units=3) as found:
        for _ in range(3):
            torch.mm(x, x)
    counts = {kernel.name: kernel.launches for kernel in found.region.kernels}
    assert (counts["aten::mm"], found.region.units) == (3, 3)
    with pytest.raises(ProfileError, match="no operator of PyTorch"), profiled("cpu"):
        pass
    with torch.profiler.profile(), pytest.raises(ProfileError, match="inside another"), profiled("cpu"):
        pytest.fail("two recordings at once end the process")
    with pytest.raises(ProfileError, match="inside the block"), profiled("cpu"), torch.profiler.profile():
        torch.mm(x, x)
    with profiled("cpu"), ThreadPoolExecutor(1) as other:
        torch.mm(x, x)
        with pytest.raises(ProfileError, match="inside another"):
            other.submit(profiled("cpu").__enter__).result()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"device": "gpu"}, "must be cpu, or cuda"),
        ({"units": 0}, "at least 1"),
    ],
)
def test_wrong_arguments_are_refused_before_the_block(arguments: dict[str, Any], why: str) -> None:
    pytest.importorskip("torch")
    with pytest.raises(ValueError, match=why), profiled(**arguments):
        pytest.fail("the block ran")
