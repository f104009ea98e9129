"""Kernels are read from a graph as the driver describes them."""

import ctypes

import pytest
import torch

from bench.systems.ttt import launches as module
from bench.systems.ttt.kernel_layer import _compiled_metrics
from bench.systems.ttt.launches import Launch, launches, metrics_of, settings_of
from tk_kernels.build import KernelResources


def launch(name="k", **fields):
    values = {"registers": 40, "local_bytes": 0, "shared_bytes": 100, "blocks": 2, "threads": 64} | fields
    return Launch(name, **values)


class Driver:
    """A libcuda with one graph: node 1 is a copy, node 2 a kernel known by its function, node 3 one by its kernel."""

    def __getattr__(self, name):
        raise AttributeError(name)

    def cuGraphGetNodes(self, graph, nodes, count):
        assert graph.value == 77
        count._obj.value = 3
        if nodes is not None:
            nodes[:] = [1, 2, 3]
        return 0

    def cuGraphNodeGetType(self, node, kind):
        kind._obj.value = 1 if node.value == 1 else 0
        return 0

    def cuGraphKernelNodeGetParams_v2(self, node, launched):
        launched._obj.function = 20 if node.value == 2 else None
        launched._obj.kernel = None if node.value == 2 else 30
        launched._obj.grid, launched._obj.block, launched._obj.shared_bytes = (5, 2, 1), (128, 1, 1), 1000
        return 0

    def cuKernelGetFunction(self, function, kernel):
        function._obj.value = kernel.value
        return 0

    def cuFuncGetName(self, name, function):
        name._obj.value = f"kernel_{function.value}".encode()
        return 0

    def cuFuncGetAttribute(self, value, attribute, function):
        value._obj.value = {1: 24, 3: 0, 4: function.value}[attribute]
        return 0


@pytest.fixture
def driver(monkeypatch):
    module._named.cache_clear()
    found = Driver()
    monkeypatch.setattr(module, "_driver", lambda: found)
    return found


def test_a_graph_is_read_node_by_node(driver):
    found = [one for node in module._nodes(77) if (one := module._launch_of(node))]
    assert found == [
        Launch("kernel_20", registers=20, local_bytes=0, shared_bytes=1024, blocks=10, threads=128),
        Launch("kernel_30", registers=30, local_bytes=0, shared_bytes=1024, blocks=10, threads=128),
    ]


def test_an_error_of_the_driver_is_named(driver):
    driver.cuGraphNodeGetType = lambda node, kind: 400
    with pytest.raises(RuntimeError, match="cuGraphNodeGetType failed with CUDA error 400"):
        module._launch_of(ctypes.c_void_p(1))


def test_the_record_says_the_most_that_any_kernel_takes_and_each_kernel_once():
    found = [launch("a"), launch("a"), launch("b", registers=255, local_bytes=16, shared_bytes=0)]
    assert metrics_of(found) == {"registers": 255, "spilled_bytes": 16, "shared_bytes": 100}
    assert settings_of(found)["kernels"].split("; ") == [str(found[0]), str(found[2])]


def test_of_a_compiled_module_its_own_kernels_count_with_the_spills_of_their_compiler():
    class Built:
        resources = (KernelResources("own", 168, 8, 12, 0, 0), KernelResources("unused", 255, 900, 900, 0, 0))

    found = [launch("own", registers=168), launch("torch's fill", registers=200)]
    assert _compiled_metrics(found, Built()) == {"registers": 168, "spilled_bytes": 20, "shared_bytes": 100}


@pytest.mark.gpu
def test_launches_of_a_real_graph():
    x = torch.randn(256, 256, device="cuda")
    found = launches(lambda: x.neg_().relu_())  # a kernel each, whatever libraries are installed
    assert len(found) == 2
    assert all(one.registers > 0 and one.blocks > 0 and one.threads > 0 for one in found)


@pytest.mark.gpu
def test_registers_of_a_compiled_kernel_are_those_that_ptxas_reports():
    from bench.systems.ttt.kernels import LinearThunderKittens
    from harness.case import Case
    from tk_kernels import build

    case = Case(
        "ttt-linear", "thunderkittens", "tiny", "forward", 1, 64, state_dtype="float32", options=(("scope", "layer"),)
    )
    workload = LinearThunderKittens().build(case)
    compiled = {kernel.name: kernel for kernel in build.build("ttt_linear/forward_sm90").resources}
    used = [kernel for name, kernel in compiled.items() if name in workload.settings["kernels"]]
    assert workload.metrics["registers"] in {kernel.registers for kernel in used}
    assert workload.metrics["spilled_bytes"] == 0
    assert workload.metrics["shared_bytes"] > 10_000
    assert workload.settings["compiler"]
