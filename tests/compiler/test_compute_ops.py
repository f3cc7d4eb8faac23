"""Products of activations, reductions, norms, transposed convolutions and softmax against the host's operators."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from compiler.api import compile
from compiler.host import evaluate
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization, Tensor
from compiler.network import Network
from compiler.runtime import dram_bytes
from compiler.schedule.schedule import Schedule
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from hw.errors import InputError
from tests.compiler.compute_graphs import KINDS, Chance
from tests.compiler.graphs import Draft, check, run_on
from tests.compiler.test_schedules import perturbed

TARGETS = ("n4", "n8", "n16")
SEEDS = range(6)
HEAD = {"axis": 3, "beta": 1.0}


def graph_of(kind: str, seed: int) -> tuple[Chance, Graph]:
    chance = Chance(seed)
    y = KINDS[kind][0](chance)
    return chance, chance.graph.finish([y.name])


def compare(
    kind: str, seed: int, network: Network, inputs: dict[str, np.ndarray], found: dict[str, np.ndarray]
) -> None:
    assert network.graph is not None
    wanted = evaluate(network.graph, inputs)
    for name, array in wanted.items():
        off = np.abs(found[name].astype(int) - array.astype(int))
        assert off.max() <= KINDS[kind][1], (
            f"{kind}, seed {seed}: {off.max()} off in {np.count_nonzero(off)} of {off.size}\n{network.graph}"
            f"\n{network.schedule.to_json()}"
        )


def on_golden(network: Network, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        return run_on(device, network, inputs)


def everywhere(schedule: Schedule, on_chip: bool) -> Schedule:
    """All tensors between layers in the scratchpad, or in DRAM."""
    layers = {name: replace(layer, on_chip=on_chip) for name, layer in schedule.layers.items()}
    return replace(schedule, layers=layers)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", KINDS)
def test_random_graphs_under_random_schedules(kind: str, target: str, seed: int) -> None:
    chance, graph = graph_of(kind, seed)
    first = compile(graph, target, strict=True)
    inputs = chance.random_inputs()
    compare(kind, seed, first, inputs, on_golden(first, inputs))
    schedules = [everywhere(first.schedule, on_chip) for on_chip in (True, False)]
    schedules.append(perturbed(first.schedule, random.Random(seed)))
    ran = 0
    for schedule in schedules:
        try:
            network = compile(graph, target, schedule=schedule)
        except InputError as error:
            assert "fit" in str(error)
            continue
        ran += 1
        compare(kind, seed, network, inputs, on_golden(network, inputs))
    assert ran, f"{kind}, seed {seed}: no schedule fits"


@pytest.mark.parametrize("seed", [100, 101])
@pytest.mark.parametrize("kind", KINDS)
def test_rtl(kind: str, seed: int) -> None:
    chance, graph = graph_of(kind, seed)
    network = compile(graph, "n8", strict=True)
    inputs = chance.random_inputs()
    with RtlDevice(network.config, dram_bytes(network)) as device:
        compare(kind, seed, network, inputs, run_on(device, network, inputs))


@pytest.mark.parametrize("amplitude", [0, 1, 2, 128])
@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_rows_of_little_variance(op: str, amplitude: int) -> None:
    """What a row is divided by may be anything from epsilon to the whole range."""
    draft = Draft(np.random.default_rng(amplitude))
    x = draft.input((7, 768))
    y = draft.node(op, [x], x.shape, scale=4 / 127, axis=1, epsilon=1e-5)
    network = compile(draft.graph.finish([y.name]), "n16", strict=True)
    zero = x.quantization.zero_point[0] if x.quantization else 0
    near = zero + draft.rng.integers(-amplitude, amplitude + 1, x.shape)
    inputs = {x.name: np.clip(near, -128, 127).astype(np.int8)}
    compare("norm", amplitude, network, inputs, on_golden(network, inputs))


def attention(seed: int, heads: int, rows: int, depth: int) -> tuple[Draft, list[Tensor]]:
    """Softmax(Q x K^T / sqrt(depth)) x V, of which each stage is an output; heads lie beside one another."""
    draft = Draft(np.random.default_rng(seed))
    q, k, v = (draft.input((1, rows, heads, depth)) for _ in range(3))
    apart = (1, heads, rows, depth)
    a = draft.node("transpose", [q], apart, like=q, perm=(0, 2, 1, 3))
    b = draft.node("transpose", [k], (1, heads, depth, rows), like=k, perm=(0, 2, 3, 1))
    spread = 0.1 * 0.1 * 74**2 * math.sqrt(depth) / 30
    scores = draft.node("matmul", [a, b], (1, heads, rows, rows), scale=spread)
    factor = draft.constant((), quantization=Quantization.of(1 / math.sqrt(depth) / 64))
    scaled = draft.node("mul", [scores, factor], scores.shape, scale=spread / math.sqrt(depth) * 2)
    share = Tensor("share", scores.shape, "int8", Quantization.of(1 / 256, -128))
    draft.into("softmax", [scaled], share, **HEAD)
    c = draft.node("transpose", [v], apart, like=v, perm=(0, 2, 1, 3))
    mixed = draft.node("matmul", [share, c], apart, scale=0.1 * 74 / 90)
    y = draft.node("transpose", [mixed], q.shape, like=mixed, perm=(0, 2, 1, 3))
    return draft, [scores, scaled, share, y]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("heads", "rows", "depth"), [(1, 9, 16), (3, 20, 10), (2, 33, 32)])
def test_attention(target: str, heads: int, rows: int, depth: int) -> None:
    """Every stage within 1 of real arithmetic on what the stage before it made."""
    draft, stages = attention(heads, heads, rows, depth)
    graph = draft.graph.finish([tensor.name for tensor in stages])
    network, inputs = compile(graph, target, strict=True), draft.random_inputs()
    assert [layer.ops.count("transpose") for layer in network.layers] == [2, 0, 0, 2]
    found = on_golden(network, inputs)
    real = {name: meaning(graph, name, array) for name, array in (inputs | found).items()}
    q, k, v = (real[name].swapaxes(1, 2) for name in graph.inputs)
    scores, scaled, share, y = (tensor.name for tensor in stages)
    factor = next(t for t in graph.tensors.values() if t.constant)
    assert factor.data is not None
    number = meaning(graph, factor.name, factor.data)
    powers = np.exp(real[scaled] - real[scaled].max(-1, keepdims=True))
    wanted = {
        scores: q @ k.swapaxes(2, 3), scaled: real[scores] * number,
        share: powers / powers.sum(-1, keepdims=True), y: (real[share] @ v).swapaxes(1, 2),
    }  # fmt: skip
    for name, array in wanted.items():
        off = np.abs(stored(graph, name, array) - found[name])
        assert off.max() <= 1, f"{target}: {name} is {off.max()} off\n{graph}"


def meaning(graph: Graph, name: str, array: np.ndarray) -> np.ndarray:
    q = graph.tensors[name].quantization
    assert q is not None
    return q.dequantized(array).astype(np.float64)


def stored(graph: Graph, name: str, real: np.ndarray) -> np.ndarray:
    tensor = graph.tensors[name]
    assert tensor.quantization is not None
    limits, (scale,), (zero,) = (
        np.iinfo(tensor.dtype), tensor.quantization.scale, tensor.quantization.zero_point,
    )  # fmt: skip
    return np.clip(np.rint(real / scale) + zero, limits.min, limits.max).astype(int)


@pytest.mark.parametrize("constant", [0, 1])
def test_a_factor_may_be_constant(constant: int) -> None:
    draft = Draft(np.random.default_rng(constant))
    shapes = [(3, 7, 20), (3, 20, 9)]
    factors = [(draft.constant if i == constant else draft.input)(shape) for i, shape in enumerate(shapes)]
    network = check(draft, [draft.node("matmul", factors, (3, 7, 9), scale=5.0)])
    assert not network.host


def test_a_large_mean_is_made_in_pieces() -> None:
    draft = Draft(np.random.default_rng(3))
    x = draft.input((1, 200, 150, 24))
    outs = [
        draft.node("reduce_mean", [x], shape, scale=0.01, axes=axes, keep=False)
        for axes, shape in (((1, 2), (1, 24)), ((1, 2, 3), (1,)), ((2, 3), (1, 200)))
    ]
    assert not check(draft, outs, "n4").host


NORM = {"epsilon": 1e-5}
TOO_MUCH = [
    ("layer_norm", (1, 4, 4, 8), "int8", {"axis": 1, **NORM}, "along the last dimension only"),
    ("rms_norm", (2, 9000), "int8", {"axis": 1, **NORM}, "over 9000 elements, more than 8192"),
    ("layer_norm", (2, 8), "int16", {"axis": 1, **NORM}, "must be int8 or uint8, not int16"),
    ("reduce_sum", (2, 8), "int16", {"axes": (0,), "keep": True}, "must be int8 or uint8, not int16"),
    ("reduce_sum", (2, 3, 2, 3, 2, 3), "int8", {"axes": (0, 2, 4), "keep": True}, "too many strides"),
    ("reduce_max", (2, 3000, 2, 2100, 2), "int8", {"axes": (1, 3), "keep": True}, "too long strides"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "shape", "dtype", "attributes", "message"), TOO_MUCH)
def test_what_the_machine_cannot_do_is_named(
    op: str, shape: tuple[int, ...], dtype: str, attributes: dict, message: str
) -> None:
    draft = Draft(np.random.default_rng(0))
    meaning = Quantization.of(0.1)
    x = draft.graph.add_input(Tensor("x", shape, dtype, meaning))
    made = tuple(1 if i in attributes.get("axes", ()) else size for i, size in enumerate(shape))
    draft.into(op, [x], Tensor("y", made, dtype, meaning), **attributes)
    with pytest.raises(InputError, match=message):
        compile(draft.graph.finish(["y"]), "n8", strict=True)


@pytest.mark.parametrize("op", ["softmax", "layer_norm"])
def test_rows_that_do_not_fit_are_named(op: str) -> None:
    draft = Draft(np.random.default_rng(0))
    x = draft.input((2, 8000))
    y = Tensor("y", x.shape, "int8", Quantization.of(1 / 256, -128))
    draft.into(op, [x], y, axis=1, **({"beta": 1.0} if op == "softmax" else NORM))
    with pytest.raises(InputError, match=f"{op} of 8000 elements holds .* rows of the accumulator"):
        compile(draft.graph.finish(["y"]), "n4")
