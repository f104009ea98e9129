"""Kernel launches are read from a graph through the driver."""

from enum import IntEnum
from types import SimpleNamespace

import pytest
import torch

from bench.systems.ttt import kernel_launches as module
from bench.systems.ttt.kernel_launches import KernelLaunch, kernel_launches, metrics_of, settings_of
from bench.systems.ttt.kernel_layer import _compiled_metrics
from tk_kernels.build import KernelResources


def launch(name="k", **fields):
    values = {"registers": 40, "local_bytes": 0, "shared_bytes": 100, "blocks": 2, "threads": 64} | fields
    return KernelLaunch(name, **values)


class Handle(int):
    """A handle of the binding: it converts to a number, and is truthy for any number."""

    def __bool__(self):
        return True


class Status(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_HANDLE = 400


class Driver:
    """`cuda.bindings.driver` over one graph: node 1 is a copy, node 2 a kernel by its function, node 3 by its kernel.

    Functions return tuples: the status, then values, None after an error.
    """

    CUgraph = CUfunction = Handle
    CUgraphNodeType = IntEnum("CUgraphNodeType", {"CU_GRAPH_NODE_TYPE_KERNEL": 0, "CU_GRAPH_NODE_TYPE_MEMCPY": 1})
    CUfunction_attribute = IntEnum(
        "CUfunction_attribute",
        {
            "CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES": 1,
            "CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES": 3,
            "CU_FUNC_ATTRIBUTE_NUM_REGS": 4,
        },
    )

    def cuGraphGetNodes(self, graph, numNodes=0):
        assert graph == 77
        nodes = [Handle(node) for node in (1, 2, 3)]
        return Status.CUDA_SUCCESS, nodes[:numNodes], len(nodes)

    def cuGraphNodeGetType(self, node):
        return Status.CUDA_SUCCESS, self.CUgraphNodeType(1 if node == 1 else 0)

    def cuGraphKernelNodeGetParams(self, node):
        function, kernel = (20, 0) if node == 2 else (0, 30)
        grid = {"gridDimX": 5, "gridDimY": 2, "gridDimZ": 1}
        block = {"blockDimX": 128, "blockDimY": 1, "blockDimZ": 1}
        launched = SimpleNamespace(func=Handle(function), kern=Handle(kernel), sharedMemBytes=1000, **grid, **block)
        return Status.CUDA_SUCCESS, launched

    def cuKernelGetFunction(self, kernel):
        return Status.CUDA_SUCCESS, Handle(kernel)

    def cuFuncGetName(self, function):
        return Status.CUDA_SUCCESS, f"kernel_{int(function)}".encode()

    def cuFuncGetAttribute(self, attribute, function):
        return Status.CUDA_SUCCESS, {1: 24, 3: 0, 4: int(function)}[attribute]


@pytest.fixture
def driver(monkeypatch):
    module._named.cache_clear()
    found = Driver()
    monkeypatch.setattr(module, "_driver", lambda: found)
    return found


def test_a_graph_is_read_node_by_node(driver):
    found = [one for node in module._nodes(77) if (one := module._launch_of(node))]
    assert found == [
        KernelLaunch("kernel_20", registers=20, local_bytes=0, shared_bytes=1024, blocks=10, threads=128),
        KernelLaunch("kernel_30", registers=30, local_bytes=0, shared_bytes=1024, blocks=10, threads=128),
    ]


def test_an_error_of_the_driver_is_named(driver):
    driver.cuGraphNodeGetType = lambda node: (Status.CUDA_ERROR_INVALID_HANDLE, None)
    with pytest.raises(RuntimeError, match="cuGraphNodeGetType failed with CUDA_ERROR_INVALID_HANDLE"):
        module._launch_of(Handle(1))


def test_the_record_says_the_most_that_any_kernel_takes_and_each_kernel_once():
    found = [launch("a"), launch("a"), launch("b", registers=255, local_bytes=16, shared_bytes=0)]
    assert metrics_of(found) == {"registers": 255, "spilled_bytes": 16, "shared_bytes": 100}
    assert settings_of(found)["kernels"].split("; ") == [str(found[0]), str(found[2])]


def test_of_a_compiled_module_its_own_kernels_count_with_the_spills_of_their_compiler():
    class Built:
        resources = (KernelResources("own", 168, 20), KernelResources("unused", 255, 900))

    found = [launch("own", registers=168), launch("torch's fill", registers=200)]
    assert _compiled_metrics(found, Built()) == {"registers": 168, "spilled_bytes": 20, "shared_bytes": 100}


@pytest.mark.gpu
def test_launches_of_a_real_graph():
    x = torch.randn(256, 256, device="cuda")
    found = kernel_launches(lambda: x.neg_().relu_())  # one kernel each with any library
    assert len(found) == 2
    assert all(one.registers > 0 and one.blocks > 0 and one.threads > 0 for one in found)


@pytest.mark.gpu
def test_registers_of_a_compiled_kernel_are_those_that_ptxas_reports():
    from bench.systems.ttt.kernels import TTTKernels
    from harness.schema.case import Case
    from tk_kernels import build

    case = Case(
        "ttt-linear", "thunderkittens", "tiny", "forward", 1, 64, state_dtype="float32", options=(("scope", "layer"),)
    )
    workload = TTTKernels("linear", "dual", "thunderkittens").build(case)
    compiled = {kernel.name: kernel for kernel in build.build("ttt_linear/forward_sm90").resources}
    used = [kernel for name, kernel in compiled.items() if name in workload.settings["kernels"]]
    assert workload.metrics["registers"] in {kernel.registers for kernel in used}
    assert workload.metrics["spilled_bytes"] == 0
    assert workload.metrics["shared_bytes"] > 10_000
    assert workload.settings["compiler"]
