"""Recurrent layers of other packages are called correctly and checked against their naive forms."""

import sys
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import groupby
from math import pi
from types import ModuleType

import pytest
import torch

from bench.systems.fla.models import GatedDeltaNet
from bench.systems.fla.regressors import DeltaRule, FlaLayerAdapter
from bench.systems.mamba.mamba3 import Mamba3SSM, rotated
from harness.measure.measured_case import CaseRun
from harness.measure.system import Skip
from harness.measure.timer import Clock
from harness.schema.case import Case
from harness.schema.policy import Policy

CASE = Case("kda", "fla", "1.3b", "forward", 2, 70, dtype="float32", options=(("scope", "layer"),))
ADAPTERS = {
    f"{name}/fla": GatedDeltaNet if name == "gated-deltanet" else FlaLayerAdapter for name in FlaLayerAdapter.layers
}
ADAPTERS["mamba3/mamba-ssm"] = Mamba3SSM
del ADAPTERS["ttt-linear/fla"]  # see the fixture `ttt`
# Arguments that each package's function gets besides the inputs.
ARGUMENTS = {label: {"output_final_state": True} for label in ADAPTERS}
ARGUMENTS["deltaproduct/fla"] |= {"num_householder": 2}
ARGUMENTS["mesanet/fla"] |= {"max_CG_iteration": 30, "use_qk_l2norm_in_kernel": True}
ARGUMENTS["mamba3/mamba-ssm"] = {"return_final_states": True}


def layer_of(label):
    adapter = ADAPTERS[label]
    layers = FlaLayerAdapter.layers if adapter is GatedDeltaNet else adapter.layers
    return layers[label.partition("/")[0]]


def case_of(label):
    system, _, backend = label.partition("/")
    dtype = "float32" if backend == "fla" else "bfloat16"
    return replace(CASE, system=system, backend=backend, dtype=dtype)


def small(name, layer):
    layer = replace(layer, heads=2, key_dim=8, value_dim=8 if name == "mesanet" else 16)
    if name == "gated-deltanet-128":
        return replace(layer, value_heads=4)
    return replace(layer, angles=2) if name == "mamba3" else layer


@pytest.fixture
def package(monkeypatch):
    """Replace each package's kernel by its naive form plus an error, which a test sets in the returned dict."""
    state = {"error": 0.0}
    tuning = []  # not empty inside `retuning`

    @contextmanager
    def retuning():
        tuning.append(True)
        yield
        tuning.pop()

    def prepare(run):
        state["retuned"] = bool(tuning)
        run()

    monkeypatch.setattr("bench.systems.regressor.prepare", prepare)
    monkeypatch.setattr("bench.systems.regressor.retuning", retuning)
    for adapter in (FlaLayerAdapter, Mamba3SSM):
        monkeypatch.setattr(adapter, "layers", {name: small(name, each) for name, each in adapter.layers.items()})
    modules = {}
    for label in ADAPTERS:
        layer = layer_of(label)

        def kernel(*, label=label, layer=layer, **inputs):
            assert {key: inputs.pop(key) for key in ARGUMENTS[label]} == ARGUMENTS[label]
            if isinstance(layer, DeltaRule):  # two systems call one function, with other numbers of value heads
                layer = replace(layer, value_heads=inputs["v"].shape[2])
            out, *states = layer.naive(**inputs).values()
            rest = (None, *states, None, None) if label == "mamba3/mamba-ssm" else states
            return out + state["error"], *rest

        module, _, function = layer.kernel.partition(":")
        stub = modules.setdefault(module, ModuleType(module))
        setattr(stub, function, kernel)
        monkeypatch.setitem(sys.modules, module, stub)
    return state


@pytest.mark.parametrize("label", ADAPTERS)
def test_a_layer_is_timed_and_checked(package, label):
    record = CaseRun(case_of(label), Policy(budget_s=0)).record(ADAPTERS[label]())
    assert record.status == "ok", record.reason
    checked = {each["name"] for each in record.check["checks"]}
    assert {"output_relative_error", "state_relative_error", "timed_state_relative_error"} <= checked
    assert package.pop("retuned")  # the packages' tuners cache one choice for all lengths
    package["error"] = 1.0
    record = CaseRun(case_of(label), Policy(budget_s=0)).record(ADAPTERS[label]())
    assert "output_relative_error" in record.reason


def chunk(q, k, v, w, b, eta, initial_state, initial_state_bias, output_final_state, **mini_batch):
    """Stand in for fla's TTT-Linear: return a made-up (output, final W, final b) that depends on every input tensor."""
    assert {q.dtype, k.dtype, v.dtype, eta.dtype} == {q.dtype}
    assert initial_state.dtype == torch.float32
    assert list(mini_batch.values()) == [16]
    out = q + k + v * eta + w + b + initial_state_bias.transpose(1, 2)
    return out, initial_state + out.sum(1)[..., None], initial_state_bias.clone()


@pytest.fixture
def ttt(monkeypatch):
    """Replace fla's two TTT-Linear kernels. On a fake clock, the chunk kernel takes 4 ms, the fused one 1 ms."""
    naive, ops, calls = ModuleType("fla.ops.ttt.naive"), ModuleType("fla.ops.ttt"), []

    class KernelClock(Clock):
        def sample(self):
            super().sample()
            return {"chunk_ttt_linear": 4.0, "fused_chunk_ttt_linear": 1.0}[calls[-1]]

    def chunk_ttt_linear(**inputs):
        calls.append("chunk_ttt_linear")
        return chunk(**inputs)

    def fused_chunk_ttt_linear(**inputs):
        calls.append("fused_chunk_ttt_linear")
        return ops.result(**inputs)

    naive.chunk_ttt_linear_ref, ops.result, ops.calls = chunk, chunk, calls
    monkeypatch.setattr("bench.systems.regressor.retuning", lambda: nullcontext(calls.append("retuned")))
    ops.chunk_ttt_linear, ops.fused_chunk_ttt_linear = chunk_ttt_linear, fused_chunk_ttt_linear
    monkeypatch.setattr("bench.systems.regressor.Clock", KernelClock)
    for module in (ModuleType("fla"), ModuleType("fla.ops"), ops, naive):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return ops


def test_the_fastest_kernel_of_a_layer_is_timed_and_checked(ttt):
    case = replace(CASE, system="ttt-linear", batch=6, context=80)  # more sequences than are compared
    record = CaseRun(case, Policy(budget_s=0)).record(FlaLayerAdapter())
    assert record.status == "ok", record.reason
    assert record.settings["kernel"] == "fused_chunk_ttt_linear"
    assert record.settings["form_trials"] == "chunk_ttt_linear 4 ms; fused_chunk_ttt_linear 1 ms"
    assert record.metrics["state_bytes"] == 4 * 6 * 32 * 65 * 64
    assert [name for name, _ in groupby(ttt.calls)][:3] == ["retuned", "chunk_ttt_linear", "fused_chunk_ttt_linear"]
    names = {each["name"] for each in record.check["checks"]}
    assert {"output_relative_error", "timed_output_relative_error", "timed_state_relative_error"} <= names

    def off(**inputs):
        out, *states = chunk(**inputs)
        out[:, 64:] *= 1.1  # beyond the tokens of the first check
        return out, *states

    ttt.result = off
    record = CaseRun(replace(case, dtype="bfloat16"), Policy(budget_s=0)).record(FlaLayerAdapter())
    assert record.reason.startswith("timed_output_relative_error")


def row(*values):
    return torch.tensor(values).view(1, -1, 1, 1)


def test_a_delta_rule_of_two_tokens():
    # S <- S/2 + beta k (v - k S/2), out = S q. S = 1/2 * 2 * 3 = 3; then 3/2 + 1 * (1 - 3/2) = 1.
    layer = replace(layer_of("gated-deltanet/fla"), heads=1, key_dim=1, value_dim=1)
    q, k, v = row(1.0, 4.0), row(2.0, 1.0), row(3.0, 1.0)
    beta, g = row(0.5, 1.0)[..., 0], row(0.5, 0.5)[..., 0].log()
    out, state = layer.naive(q, k, v, beta, g).values()
    assert out.flatten().tolist() == pytest.approx([3.0, 4.0])
    assert state.item() == pytest.approx(1.0)


def test_value_heads_share_q_and_k_in_groups_of_neighbors():
    layer = replace(layer_of("gated-deltanet-128/fla"), heads=2, key_dim=1, value_dim=1, value_heads=4)
    q, k = torch.tensor([1.0, 10.0]).view(1, 1, 2, 1), torch.ones(1, 1, 2, 1)
    v, beta = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 1, 4, 1), torch.ones(1, 1, 4)
    out, state = layer.naive(q, k, v, beta, torch.zeros(1, 1, 4)).values()
    assert out.flatten().tolist() == pytest.approx([1.0, 2.0, 30.0, 40.0])
    assert state.flatten().tolist() == pytest.approx([1.0, 2.0, 3.0, 4.0])


def test_two_householder_steps_are_two_updates_after_one_decay():
    layer = replace(layer_of("deltaproduct/fla"), heads=1, key_dim=1, value_dim=1)
    k, v, beta = row(2.0, 1.0), row(3.0, 1.0), row(0.5, 0.5)[..., 0]
    out, _ = layer.naive(torch.ones(1, 1, 1, 1), k, v, beta, torch.zeros(1, 1, 1)).values()
    assert out.item() == pytest.approx(2.0)  # S = 1/2 * 2 * 3 = 3, then 3 + 1/2 * (1 - 3)


def test_mesanet_is_ridge_regression_over_all_tokens_so_far():
    torch.manual_seed(0)
    layer = replace(layer_of("mesanet/fla"), heads=1, key_dim=4, value_dim=4)
    q, k, v = torch.randn(3, 1, 40, 1, 4, dtype=torch.float64)
    ridge = torch.tensor([[0.5, 1.0, 1.5, 2.0]])
    out, gram, values = layer.naive(q, k, v, torch.ones(1, 40, 1), torch.zeros(1, 40, 1), ridge).values()
    unit = k / k.norm(dim=-1, keepdim=True)
    # Ridge regression as least squares on data with the rows sqrt(Diag(ridge)) and targets of 0.
    for token in (0, 33, 39):
        rows = torch.cat([unit[0, : token + 1, 0], torch.diag(ridge[0].double().sqrt())])
        targets = torch.cat([v[0, : token + 1, 0], torch.zeros(4, 4, dtype=torch.float64)])
        weights = torch.linalg.lstsq(rows, targets).solution
        expected = q[0, token, 0] / q[0, token, 0].norm() @ weights
        torch.testing.assert_close(out[0, token, 0], expected)
    torch.testing.assert_close(gram[0, 0], unit[0, :, 0].T @ unit[0, :, 0])
    torch.testing.assert_close(values[0, 0], unit[0, :, 0].T @ v[0, :, 0])


def test_mesanet_forgets_by_its_decay_and_weighs_by_beta():
    layer = replace(layer_of("mesanet/fla"), heads=1, key_dim=1, value_dim=1)
    beta, g = row(0.5, 0.25)[..., 0], row(1.0, 0.5)[..., 0].log()
    out, gram, values = layer.naive(row(3.0, 3.0), row(2.0, 5.0), row(4.0, 8.0), beta, g, torch.ones(1, 1)).values()
    # Normalized q and k are 1. Gram matrix G <- decay G + beta: 1/2; then 1/4 + 1/4 = 1/2.
    # State S <- decay S + beta v: 1/2 * 4 = 2; then 1/2 * 2 + 1/4 * 8 = 3. out = S / (G + ridge), and the ridge is 1.
    assert (gram.item(), values.item()) == pytest.approx((0.5, 3.0))
    assert out.flatten().tolist() == pytest.approx([2 / 1.5, 3 / 1.5])


def mamba3(tokens, **changed):
    """Run the naive form of Mamba-3 on one head of key_dim 2 and value_dim 1; return (output, state).

    By default, Q, K, V and DT are 1, and there is no decay, rotation or bias. Each token is added in its own step only.
    changed: kernel arguments by name, instead of these defaults.
    """
    layer = replace(layer_of("mamba3/mamba-ssm"), heads=1, key_dim=2, value_dim=1, angles=1)
    zeros, ones = torch.zeros(1, 1, tokens), torch.ones(1, tokens, 1, 2)
    inputs = {"Q": ones, "K": ones, "V": torch.ones(1, tokens, 1, 1), "ADT": zeros, "DT": zeros + 1, "Trap": zeros + 50}
    inputs |= {"Q_bias": torch.zeros(1, 2), "K_bias": torch.zeros(1, 2), "Angles": torch.zeros(1, tokens, 1, 1)}
    return layer.naive(**(inputs | changed)).values()


def test_mamba3_adds_the_token_before_by_the_trapezoidal_rule():
    trap, decay = torch.zeros(1, 1, 3), torch.tensor([0.5, 0.5, 0.25]).log().view(1, 1, 3)
    out, state = mamba3(3, V=row(8.0, 0.0, 0.0), Trap=trap, ADT=decay)
    # sigmoid(Trap) = 1/2: half of k v is added in its own step, half in the next step before that step's decay.
    # S = 4; then 1/2 * (4 + 4) = 4; then 1/4 * 4 = 1. q = (1, 1), thus out = 2 S.
    assert out.flatten().tolist() == pytest.approx([8.0, 8.0, 2.0])
    assert state.flatten().tolist() == pytest.approx([1.0, 1.0])


def test_mamba3_rotates_by_the_sum_of_the_angles_and_after_the_biases():
    quarter = torch.full((1, 2, 1, 1), 0.5).atanh()  # q and k turn by 90 degrees per token
    east, north_east = torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0])
    shape = torch.zeros(1, 2, 1, 2)
    out, _ = mamba3(2, Q=shape + east, K=shape + east, V=row(1.0, 0.0), Angles=quarter)
    assert out.flatten().tolist() == pytest.approx([1.0, 0.0], abs=1e-6)
    # The bias (1, 1) is added before the rotation; if it came after, the second output would be -1.
    out, _ = mamba3(2, Q=shape + east, K=shape, K_bias=north_east[None], V=row(1.0, 0.0), Angles=quarter)
    assert out.flatten().tolist() == pytest.approx([1.0, 1.0], abs=1e-6)
    turns = torch.full((1, 2, 1, 1), 50.0)  # tanh = 1: half a turn per time step
    out, _ = mamba3(2, Q=shape + east, K=shape + east, V=row(1.0, 0.0), Angles=turns, DT=torch.full((1, 1, 2), 1 / 3))
    assert out.flatten().tolist() == pytest.approx([1 / 3, torch.cos(torch.tensor(pi / 3)).item() / 3])


def test_neighboring_channels_rotate_and_those_without_an_angle_stay():
    x = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], dtype=torch.float64)
    turned = rotated(x, torch.tensor([pi / 2, pi], dtype=torch.float64))
    assert turned.tolist() == pytest.approx([-2.0, 1.0, -3.0, -4.0, 5.0, 6.0])


@pytest.mark.parametrize(
    ("label", "numbers", "flops"),
    [
        ("gated-deltanet/fla", 2 * 8 * 16, 7 * 2 * 8 * 16),
        ("gated-deltanet-128/fla", 4 * 8 * 16, 7 * 4 * 8 * 16),
        ("kda/fla", 2 * 8 * 16, 7 * 2 * 8 * 16),
        ("deltaproduct/fla", 2 * 8 * 16, 11 * 2 * 8 * 16),
        ("mesanet/fla", 2 * 2 * 8 * 8, (2 * 3 + 30 * 2 + 2) * 2 * 8 * 8),
        ("mamba3/mamba-ssm", 2 * (8 * 16 + 8 + 16 + 2), 5 * 2 * 8 * 16),
    ],
)
def test_the_work_of_a_token_is_counted_by_the_state(package, label, numbers, flops):
    metrics = ADAPTERS[label]().build(case_of(label)).metrics
    assert metrics["flops"] == flops * 2 * 70
    assert metrics["state_bytes"] == 4 * 2 * numbers


def test_an_unsupported_case_is_skipped(package, monkeypatch):
    with pytest.raises(Skip, match=r"kda supports only the size 1\.3b"):
        FlaLayerAdapter().build(replace(CASE, size="tiny"))
    with pytest.raises(Skip, match=r"ttt-linear/fla does not support mini_batch=32; ttt-linear/torch does"):
        FlaLayerAdapter.layers["ttt-linear"].random_inputs(
            replace(CASE, system="ttt-linear", options=(("mini_batch", 32),))
        )
    with pytest.raises(Skip, match="Mamba-3's kernel rounds its inputs to bfloat16"):
        Mamba3SSM().build(replace(CASE, system="mamba3", backend="mamba-ssm"))
    monkeypatch.undo()
    with pytest.raises(Skip, match="Mamba-3's kernel has 32-bit indices: at most 262144 tokens, not 524288"):
        Mamba3SSM.layers["mamba3"].random_inputs(replace(case_of("mamba3/mamba-ssm"), batch=16, context=32768))
