"""Graphs without redundant nodes and channels give the same results as LiteRT and onnxruntime."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from compiler.api import compile
from compiler.ir.graph import Graph
from compiler.ir.tensor import IDENTITY, Quantization, Tensor
from compiler.passes import reduce_graph, simplify
from compiler.pipeline import CompilationTrace
from compiler.reference import Kernels, evaluate
from compiler.runtime.package_writer import read_package, to_bytes
from compiler.runtime.session import dram_bytes
from compiler.visualize.formats import to_text
from compiler.visualize.stages import view_of
from cosim.golden import GoldenDevice
from tests.support.graphs import Draft, run_on
from tests.support.onnx_models import Arrays, model, node, read, reference
from tests.support.redundant_networks import redundant_network
from tests.support.tflite_models import check, litert
from tests.support.tflite_models import read as read_draft

ROUNDINGS: tuple[Kernels, ...] = ("reference", "xnnpack")
#: Attributes of a 1x1 convolution, and of a 3x3 convolution with padding.
POINT = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
WINDOW = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_reduced_graphs_equal_litert(
    rng: np.random.Generator, tmp_path: Path, rounding: Kernels, dtype: str
) -> None:
    """Networks are also reduced a second time, which must change nothing."""
    found: set[str] = set()
    for _ in range(25):
        draft = redundant_network(rng, int(rng.integers(3, 10)), dtype)
        graph = simplify(read_draft(draft, tmp_path))
        arrays = [draft.values(name) for name in draft.inputs]
        wanted = litert(draft.file(), arrays, rounding)
        for multiple in (1, 8, None):
            reduced, removed = reduce_graph(graph, rounding, (), multiple)
            got = evaluate(reduced, dict(zip(draft.inputs, arrays, strict=True)), rounding=rounding)
            for name, array in zip(draft.outputs, wanted, strict=True):
                np.testing.assert_array_equal(got[name], array, f"{name}, multiple {multiple}")
            assert reduce_graph(reduced, rounding, (), multiple)[0] is reduced
            found |= {each.reason if each.channels is None else each.op for each in removed}
    assert {"conv2d", "another node computes the same", "it has no effect"} <= found


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_reduced_networks_on_the_accelerator_equal_litert(
    rng: np.random.Generator, tmp_path: Path, rounding: Kernels
) -> None:
    for target in ("n4", "n8", "n16"):
        for _ in range(3):
            check(redundant_network(rng, int(rng.integers(4, 9))), tmp_path, rounding, target=target)


def qdq_chain(rng: np.random.Generator) -> tuple[onnx.ModelProto, Arrays]:
    """Return the model of a chain of convolutions with zero filters in QDQ form, and an input."""
    nodes, held, channels, x = [], {}, int(rng.choice([3, 8])), "x"
    scale, size = np.float32(0.05), int(rng.integers(4, 7))
    held |= {"s0": scale, "z": np.array(-128, np.int8)}
    nodes.append(node("DequantizeLinear", "x s0 z", "r0"))
    real, wide = "r0", channels
    for number in range(1, int(rng.integers(3, 6))):
        grouped = number % 2 == 0
        out, kernel = (wide, 3) if grouped else (int(rng.choice([8, 20])), 1)
        shape = (out, 1 if grouped else wide, kernel, kernel)
        weights = rng.integers(-127, 128, shape).astype(np.int8)
        weights[rng.random(out) < 0.5] = 0
        weight_scales = rng.uniform(0.001, 0.01, out).astype(np.float32)
        bias = rng.integers(-3000, 3000, out).astype(np.int32)
        held |= {
            f"w{number}": weights,
            f"ws{number}": weight_scales,
            f"wz{number}": np.zeros(out, np.int8),
            f"b{number}": bias,
            f"bs{number}": weight_scales * scale,
            f"bz{number}": np.zeros(out, np.int32),
        }
        nodes.append(node("DequantizeLinear", f"w{number} ws{number} wz{number}", f"wr{number}", axis=0))
        nodes.append(node("DequantizeLinear", f"b{number} bs{number} bz{number}", f"br{number}", axis=0))
        pads = [kernel // 2] * 4
        groups = wide if grouped else 1
        nodes.append(node("Conv", f"{real} wr{number} br{number}", f"c{number}", pads=pads, group=groups))
        nodes.append(node("Relu", f"c{number}", f"a{number}"))
        scale = np.float32(rng.uniform(0.02, 0.2))
        held[f"s{number}"] = scale
        nodes.append(node("QuantizeLinear", f"a{number} s{number} z", f"q{number}"))
        nodes.append(node("DequantizeLinear", f"q{number} s{number} z", f"r{number}"))
        real, wide, x = f"r{number}", out, f"q{number}"
    inputs = {"x": rng.integers(-128, 128, (1, channels, size, size)).astype(np.int8)}
    return model(nodes[:-1], inputs, [x], held), inputs


def test_reduced_graphs_equal_onnxruntime(rng: np.random.Generator, tmp_path: Path) -> None:
    count = 0
    for _ in range(40):  # on average 1.3 removed parts a model, with a standard deviation of 5 in 20 models
        made, inputs = qdq_chain(rng)
        graph = simplify(read(tmp_path, made))
        reduced, removed = reduce_graph(graph, "onnxruntime")
        got = evaluate(reduced, inputs, rounding="onnxruntime")
        for name, array in reference(made, inputs).items():
            np.testing.assert_array_equal(got[name], array)
        count += len(removed)
    assert count > 20


def weights_of(draft: Draft, shape: tuple[int, ...], zero: list[int], axis: int = 0) -> Tensor:
    """Add constant weights without zero point whose filters with the given numbers are zero."""
    tensor = draft.constant(shape, quantization=Quantization.per_tensor(0.01))
    assert tensor.data is not None
    np.moveaxis(tensor.data, axis, 0)[zero] = 0
    return tensor


def reduced_like(graph: Graph, draft: Draft) -> Graph:
    """Return the reduced graph after a comparison of its outputs with those of the graph."""
    inputs = draft.random_inputs()
    reduced, _ = reduce_graph(graph, "reference")
    wanted, got = evaluate(graph, inputs), evaluate(reduced, inputs)
    for name, array in wanted.items():
        np.testing.assert_array_equal(got[name], array)
    return reduced


def padded_chain(zero_point: int, bias: int) -> tuple[Draft, Graph]:
    """Return two convolutions, the second with padding; half of the first one's channels are constant."""
    draft = Draft(np.random.default_rng(3))
    x = draft.input((1, 5, 5, 4))
    first = Tensor("first", (1, 5, 5, 8), "int8", Quantization.per_tensor(0.1, zero_point))
    data = np.full(8, bias, np.int32)
    biases = draft.graph.add_tensor(Tensor("bias", (8,), "int32", IDENTITY, data))
    y = draft.into(
        "conv2d", [x, weights_of(draft, (8, 1, 1, 4), [0, 1, 2, 3]), biases], first, groups=1, **POINT
    )
    z = draft.node("conv2d", [y, weights_of(draft, (6, 3, 3, 8), [])], (1, 5, 5, 6), groups=1, **WINDOW)
    return draft, draft.graph.finish([z.name])


def test_constants_beside_padding_are_folded_only_if_padding_reads_them() -> None:
    draft, graph = padded_chain(zero_point=-128, bias=-(1 << 20))  # saturates at the zero point
    assert reduced_like(graph, draft).tensors["first"].shape[-1] == 4
    draft, graph = padded_chain(zero_point=-100, bias=-(1 << 20))
    assert reduced_like(graph, draft) is graph


def test_channels_that_are_sliced_away_are_removed_before_the_slice() -> None:
    draft = Draft(np.random.default_rng(4))
    x = draft.input((1, 3, 3, 4))
    y = draft.node("conv2d", [x, weights_of(draft, (12, 1, 1, 4), [])], (1, 3, 3, 12), groups=1, **POINT)
    part = draft.node(
        "slice", [y], (1, 3, 3, 5), like=y, starts=(0, 0, 0, 4), sizes=(1, 3, 3, 5), steps=(1, 1, 1, 1)
    )
    reduced = reduced_like(draft.graph.finish([part.name]), draft)
    assert [node.op for node in reduced] == ["conv2d"]
    assert list(reduced.outputs) == [part.name] and reduced.tensors[part.name].shape == (1, 3, 3, 5)


def test_layer_of_zeros_becomes_an_operand_of_the_sum() -> None:
    draft = Draft(np.random.default_rng(5))
    x = draft.input((1, 4, 4, 8))
    zeros = draft.node(
        "conv2d", [x, weights_of(draft, (8, 1, 1, 8), list(range(8)))], x.shape, groups=1, **POINT
    )
    reduced = reduced_like(draft.graph.finish([draft.node("add", [x, zeros], x.shape).name]), draft)
    (only,) = reduced
    assert only.op == "add" and sum(tensor.constant for tensor in reduced.ins(only)) == 1


def test_pinned_tensors_and_outputs_keep_their_channels() -> None:
    draft, graph = padded_chain(zero_point=-128, bias=-(1 << 20))
    assert reduce_graph(graph, "reference", pinned=("first",))[0] is graph
    seen = graph.finish([*graph.outputs, "first"])
    assert reduced_like(seen, draft) is seen


def test_bias_beyond_32_bits_is_not_folded() -> None:
    draft = Draft(np.random.default_rng(6))
    x = draft.input((1, 2, 2, 4))
    limit = np.full(8, 1 << 20, np.int32)
    biases = draft.graph.add_tensor(Tensor("bias", (8,), "int32", IDENTITY, limit))
    first = Tensor("first", (1, 2, 2, 8), "int8", Quantization.per_tensor(0.1, -128))
    y = draft.into("conv2d", [x, weights_of(draft, (8, 1, 1, 4), [0, 1]), biases], first, groups=1, **POINT)
    most = draft.graph.add_tensor(Tensor("most", (6,), "int32", IDENTITY, np.full(6, 2**31 - 1, np.int32)))
    z = draft.node("conv2d", [y, weights_of(draft, (6, 1, 1, 8), []), most], (1, 2, 2, 6), groups=1, **POINT)
    graph = draft.graph.finish([z.name])
    assert reduce_graph(graph, "reference")[0] is graph


def test_reports_name_what_was_removed(tmp_path: Path) -> None:
    """Channels are removed up to a multiple of the lanes; files of compiled networks contain the description."""
    draft = Draft(np.random.default_rng(7))
    x = draft.input((1, 6, 6, 16))
    wide = draft.node(
        "conv2d",
        [x, weights_of(draft, (64, 1, 1, 16), list(range(20, 64)))],
        (1, 6, 6, 64),
        groups=1,
        **POINT,
    )
    y = draft.node("conv2d", [wide, weights_of(draft, (8, 1, 1, 64), [])], (1, 6, 6, 8), groups=1, **POINT)
    record = CompilationTrace()
    network = compile(draft.graph.finish([y.name]), "n16", rounding="reference", record=record)
    (removed,) = network.removed
    assert (removed.channels, removed.removed, removed.reason) == (64, 32, "44 are constant")
    assert str(removed) in to_text(view_of(record, "reduced"))
    assert str(removed) == f"removed 32 of 64 channels of make {wide.name} (conv2d): 44 are constant"
    path = tmp_path / "network.mla"
    path.write_bytes(to_bytes(network))
    assert read_package(path).removed == network.removed


def test_removal_that_does_not_help_is_not_done() -> None:
    """61 of 64 channels take as many rows of the array as 64."""
    draft = Draft(np.random.default_rng(8))
    x = draft.input((1, 6, 6, 16))
    wide = draft.node(
        "conv2d", [x, weights_of(draft, (64, 1, 1, 16), [1, 2, 3])], (1, 6, 6, 64), groups=1, **POINT
    )
    y = draft.node("conv2d", [wide, weights_of(draft, (8, 1, 1, 64), [])], (1, 6, 6, 8), groups=1, **POINT)
    network = compile(draft.graph.finish([y.name]), "n16", rounding="reference")
    assert network.removed == () and network.layers[0].y == wide.name


@pytest.mark.parametrize(
    ("order", "chained"), [((1, 2), False), ((2, 1), True), ((3, 1, 2), True), ((2,), False)]
)
def test_joined_slices_with_the_same_steps_become_a_transpose(order: tuple[int, ...], chained: bool) -> None:
    """The slices start at all combinations of offsets, which change fastest along the last axis of `order`."""
    draft = Draft(np.random.default_rng(6))
    x, last = draft.input((2, 6, 9, 8, 5)), 4
    steps = tuple({1: 2, 2: 3, 3: 4}[axis] if axis in order else 1 for axis in range(5))
    parts = []
    for starts in np.ndindex(*(steps[axis] for axis in order)):
        part = x
        # Axes are sliced one after the other, as in exported models, or together.
        for axes in [(axis,) for axis in order] if chained else [order]:
            shape = tuple(n // steps[i] if i in axes else n for i, n in enumerate(part.shape))
            at = tuple(starts[order.index(i)] if i in axes else 0 for i in range(5))
            by = tuple(steps[i] if i in axes else 1 for i in range(5))
            part = draft.node("slice", [part], shape, like=x, starts=at, sizes=shape, steps=by)
        parts.append(part)
    made = (*parts[0].shape[:last], sum(part.shape[last] for part in parts))
    y = draft.node("concat", parts, made, like=x, axis=last)
    graph = draft.graph.finish([y.name])
    assert [each.op for each in reduced_like(graph, draft)] == ["reshape", "transpose", "reshape"]


@pytest.mark.parametrize("starts", [(0, 0), (0,), (1, 0, 1)])
def test_slices_that_are_not_all_different_remain(starts: tuple[int, ...]) -> None:
    draft = Draft(np.random.default_rng(7))
    x = draft.input((1, 6, 4, 5))
    limits: dict[str, Any] = {"sizes": (1, 3, 4, 5), "steps": (1, 2, 1, 1)}
    parts = [draft.node("slice", [x], (1, 3, 4, 5), like=x, starts=(0, at, 0, 0), **limits) for at in starts]
    y = draft.node("concat", parts, (1, 3, 4, 5 * len(parts)), like=x, axis=3)
    graph = draft.graph.finish([y.name])
    assert "transpose" not in {each.op for each in reduced_like(graph, draft)}


@pytest.mark.parametrize("axis", [1, -2, 3])
def test_slices_along_one_axis_in_another_order_become_a_gather(axis: int) -> None:
    """A roll reads its operand once; channels, the last axis, stay slices, which channels are followed through."""
    draft = Draft(np.random.default_rng(9))
    x = draft.input((1, 6, 7, 5))
    parts = []
    for start, end in ((2, x.shape[axis]), (0, 2)):
        shape = tuple(end - start if i == axis % 4 else n for i, n in enumerate(x.shape))
        at = tuple(start if i == axis % 4 else 0 for i in range(4))
        parts.append(draft.node("slice", [x], shape, like=x, starts=at, sizes=shape, steps=(1, 1, 1, 1)))
    y = draft.node("concat", parts, x.shape, like=x, axis=axis)
    graph = draft.graph.finish([y.name])
    found = [each.op for each in reduced_like(graph, draft)]
    assert found == (["gather"] if axis % 4 < 3 else ["slice", "slice", "concat"])


def test_transposes_around_a_merging_reshape_become_one(rng: np.random.Generator) -> None:
    """Each dimension of the reshaped tensor consists of one to three dimensions, some of which are 1."""
    for _ in range(40):
        draft = Draft(rng)
        groups = [[int(size) for size in rng.integers(1, 4, rng.integers(1, 4))] for _ in range(3)]
        sizes, merged = [size for group in groups for size in group], [math.prod(group) for group in groups]
        first, last = ([int(axis) for axis in rng.permutation(count)] for count in (len(sizes), 3))
        x = draft.input(tuple(sizes[first.index(axis)] for axis in range(len(sizes))))
        parts = draft.node("transpose", [x], tuple(sizes), like=x, perm=tuple(first))
        whole = draft.node("reshape", [parts], tuple(merged), like=x, shape=tuple(merged))
        y = draft.node("transpose", [whole], tuple(merged[axis] for axis in last), like=x, perm=tuple(last))
        reduced = reduced_like(draft.graph.finish([y.name]), draft)
        assert sum(each.op == "transpose" for each in reduced) <= 1, (groups, first, last)


@pytest.mark.parametrize(
    ("op", "how"),
    [("DepthToSpace", {"mode": "DCR"}), ("DepthToSpace", {"mode": "CRD"}), ("SpaceToDepth", {})],
)
def test_blocks_of_quantized_planes_are_one_layer(
    rng: np.random.Generator, tmp_path: Path, op: str, how: dict[str, str]
) -> None:
    shape = (1, 36, 8, 10) if op == "DepthToSpace" else (1, 9, 16, 20)
    inputs: Arrays = {"x": rng.integers(-128, 128, shape).astype(np.int8)}
    nodes = [
        node("DequantizeLinear", "x s z", "real"),
        node(op, "real", "moved", blocksize=2, **how),
        node("QuantizeLinear", "moved s z", "y"),
    ]
    made = model(nodes, inputs, ["y"], {"s": np.array(0.1, np.float32), "z": np.array(3, np.int8)})
    network = compile(read(tmp_path, made), "n16")
    assert len(network.layers) == 1 and not network.host
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        found = run_on(device, network, inputs)
    np.testing.assert_array_equal(found["y"], reference(made, inputs)["y"])
