"""Convolutions with smaller kernels, moved strides and joined kernels give the same results as LiteRT."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from compiler.api import compile
from compiler.ir.graph import Graph
from compiler.ir.tensor import IDENTITY, Quantization, Tensor
from compiler.options import PASSES
from compiler.passes import simplify
from compiler.passes.kernel_sizes import (
    KERNEL_PASSES,
    compose_convolutions,
    move_strides,
    repeat_channels,
    shrink_kernels,
)
from compiler.reference import Kernels, evaluate
from compiler.runtime.package_writer import read_package, to_bytes
from tests.support.graphs import Draft as GraphDraft
from tests.support.one_operator import options
from tests.support.tflite_models import Draft, check, litert, read

ROUNDINGS: tuple[Kernels, ...] = ("reference", "xnnpack")
_SAME, _VALID = schema.Padding.SAME, schema.Padding.VALID
POINT: dict[str, Any] = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "groups": 1}


def sparse_convolution(rng: np.random.Generator, dtype: str = "int8") -> Draft:
    """Return a convolution some of whose rows and columns of taps are zero, on an image that may be tiny."""
    d = Draft(rng, dtype)
    grouped, (h, w) = bool(rng.integers(2)), (int(each) for each in rng.integers(1, 10, 2))
    c, kernel = int(rng.choice([1, 3, 8])), tuple(int(each) for each in rng.integers(1, 6, 2))
    stride = int(rng.choice([1, 1, 2, 3]))
    dilation = int(rng.choice([1, 2, 3])) if stride == 1 else 1
    reach = [(size - 1) * dilation + 1 for size in kernel]
    same = bool(rng.integers(2)) or h < reach[0] or w < reach[1]
    x = d.input((1, h, w, c))
    out = c if grouped else int(rng.choice([2, 16]))
    shape = (1, *kernel, c) if grouped else (out, *kernel, c)
    weights, bias = d.weights(shape, 3 if grouped else 0, x)
    meaning = d.meaning[weights]
    zero = meaning[1] if isinstance(meaning, tuple) else 0
    for axis in (1, 2):
        every = int(rng.choice([0, 0, 2, 3]))  # some taps at random, or all but every second or third
        taps = np.arange(shape[axis])
        chosen = rng.random(len(taps)) < 0.5 if not every else (taps + int(rng.integers(2))) % every != 0
        np.moveaxis(d.tensors[weights], axis, 0)[chosen] = zero
    kind = "DepthwiseConv2D" if grouped else "Conv2D"
    settings = options(
        kind,
        padding=_SAME if same else _VALID,
        strideH=stride,
        strideW=stride,
        dilationHFactor=dilation,
        dilationWFactor=dilation,
        fusedActivationFunction=int(rng.integers(2)),
        **({"depthMultiplier": 1} if grouped else {}),
    )
    size = [-(-(n - (0 if same else r - 1)) // stride) for n, r in zip((h, w), reach, strict=True)]
    operator = "DEPTHWISE_CONV_2D" if grouped else "CONV_2D"
    d.outputs = [d.op(operator, [x, weights, bias], (1, *size, out), settings, scale=0.3)]
    return d


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_smaller_kernels_equal_litert(
    rng: np.random.Generator, tmp_path: Path, rounding: Kernels, dtype: str
) -> None:
    """About six of ten kernels become smaller; a second pass changes nothing."""
    count = 0
    for _ in range(60):
        draft = sparse_convolution(rng, dtype)
        graph = simplify(read(draft, tmp_path))
        arrays = [draft.values(name) for name in draft.inputs]
        (wanted,) = litert(draft.file(), arrays, rounding)
        shrunk, found = shrink_kernels(graph)
        got = evaluate(shrunk, dict(zip(draft.inputs, arrays, strict=True)), rounding=rounding)
        np.testing.assert_array_equal(got[draft.outputs[0]], wanted)
        assert shrink_kernels(shrunk)[0] is shrunk
        count += len(found)
    assert count >= 15


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_smaller_kernels_on_the_accelerator_equal_litert(
    rng: np.random.Generator, tmp_path: Path, rounding: Kernels
) -> None:
    for number in range(10):
        check(sparse_convolution(rng), tmp_path, rounding, target=("n4", "n8", "n16")[number % 3])


def taps_of(weights: np.ndarray, size: int, **attributes: Any) -> tuple[GraphDraft, Graph]:
    """Return a convolution with given weights of an image of 8 channels, with padding that keeps its size."""
    draft = GraphDraft(np.random.default_rng(1))
    x = draft.input((1, size, size, 8))
    w = draft.graph.add_tensor(Tensor("w", weights.shape, "int8", Quantization.per_tensor(0.01), weights))
    pad = weights.shape[1] // 2
    y = draft.node("conv2d", [x, w], x.shape, **dict[str, Any](POINT | {"pads": (pad,) * 4} | attributes))
    return draft, draft.graph.finish([y.name])


def shrunk_attributes(weights: np.ndarray, size: int = 9) -> tuple[tuple[int, ...], dict[str, object]]:
    """Return the kernel and the attributes after shrinking, which must not change the results."""
    draft, graph = taps_of(weights, size)
    made, _ = shrink_kernels(graph)
    inputs = draft.random_inputs()
    for name, array in evaluate(graph, inputs).items():
        np.testing.assert_array_equal(evaluate(made, inputs)[name], array)
    (node,) = made
    return made.ins(node)[1].shape[1:3], node.attributes


def test_border_of_zeros_is_removed() -> None:
    weights = np.zeros((8, 5, 5, 8), np.int8)
    weights[:, 1:4, 1:4] = 3
    kernel, attributes = shrunk_attributes(weights)
    assert kernel == (3, 3) and attributes["pads"] == (1, 1, 1, 1)
    weights[:] = 0
    weights[:, 2, 2] = 3
    assert shrunk_attributes(weights)[0] == (1, 1)


def test_taps_between_zeros_become_dilated() -> None:
    weights = np.zeros((8, 5, 5, 8), np.int8)
    weights[:, ::2, ::2] = 3
    kernel, attributes = shrunk_attributes(weights)
    assert kernel == (3, 3) and attributes["dilations"] == (2, 2)


def test_taps_that_read_only_padding_are_removed() -> None:
    kernel, attributes = shrunk_attributes(np.full((8, 3, 3, 8), 3, np.int8), size=1)
    assert kernel == (1, 1) and attributes["pads"] == (0, 0, 0, 0)
    assert shrunk_attributes(np.full((8, 5, 5, 8), 3, np.int8), size=2)[0] == (3, 3)


def equal_after(change: object, graph: Graph, draft: GraphDraft) -> Graph:
    """Return the changed graph, whose results equal those of the graph under every rounding."""
    made, found = change(graph, ())  # type: ignore[operator]
    assert bool(found) == (made is not graph)
    inputs = draft.random_inputs()
    for rounding in (*ROUNDINGS, "onnxruntime"):
        wanted = evaluate(graph, inputs, rounding=rounding)
        got = evaluate(made, inputs, rounding=rounding)
        for name, array in wanted.items():
            np.testing.assert_array_equal(got[name], array)
    return made


def strided(rng: np.random.Generator, *, also_read: bool = False) -> tuple[GraphDraft, Graph]:
    """Return a residual block whose result is read by 1x1 convolutions with strides of 2."""
    draft = GraphDraft(rng)
    size = int(rng.integers(4, 10))
    x = draft.input((1, size, size, 16))

    def product(x: Tensor, kernel: int, stride: int) -> Tensor:
        out = -(-x.shape[1] // stride)
        weights = draft.constant((16, kernel, kernel, 16), quantization=Quantization.per_tensor(0.01))
        attributes: dict[str, Any] = POINT | {"strides": (stride,) * 2, "pads": (kernel // 2,) * 4}
        return draft.node("conv2d", [x, weights], (1, out, out, 16), **attributes)

    inner = product(x, int(rng.choice([1, 3])), 1)
    total = draft.node("add", [inner, x], x.shape)
    total = draft.node("clip", [total], x.shape, like=total, low=0.0, high=6.0)
    outputs = [product(total, 1, 2).name, product(total, 1, 2).name]
    return draft, draft.graph.finish([*outputs, *([total.name] if also_read else [])])


def test_strides_move_to_the_producers(rng: np.random.Generator) -> None:
    for _ in range(8):
        draft, graph = strided(rng)
        made = equal_after(move_strides, graph, draft)
        assert [node.attributes["strides"] for node in made if node.op == "conv2d"] == [
            (2, 2),
            (1, 1),
            (1, 1),
        ]
        assert [node.op for node in made].count("max_pool2d") == 1  # the other operand of the sum
    draft, graph = strided(rng, also_read=True)
    assert equal_after(move_strides, graph, draft) is graph


def selection(rng: np.random.Generator, weight: int, pad: int) -> tuple[GraphDraft, Graph]:
    """Return a convolution that selects channels, and a 3x3 convolution with padding after it."""
    draft = GraphDraft(rng)
    x = draft.input((1, 7, 7, 8))
    data = np.zeros((8, 1, 1, 8), np.int8)
    data[np.arange(8), 0, 0, rng.permutation(8)] = weight
    chosen = draft.graph.add_tensor(Tensor("chosen", data.shape, "int8", IDENTITY, data))
    y = draft.node("conv2d", [x, chosen], x.shape, like=x, **POINT)
    weights = draft.constant((6, 3, 3, 8), quantization=Quantization.per_tensor(0.01))
    weights.data[weights.data == -128] = -127  # type: ignore[index]
    out = 5 + 2 * pad
    z = draft.node("conv2d", [y, weights], (1, out, out, 6), **dict[str, Any](POINT | {"pads": (pad,) * 4}))
    return draft, draft.graph.finish([z.name])


def test_convolutions_are_joined_if_nothing_is_rounded_between_them(rng: np.random.Generator) -> None:
    for pad in (0, 1):
        draft, graph = selection(rng, 1, pad)
        (node,) = equal_after(compose_convolutions, graph, draft)
        assert node.op == "conv2d"
    draft, graph = selection(rng, 2, 1)  # saturates
    assert equal_after(compose_convolutions, graph, draft) is graph


def test_kernels_of_two_convolutions_are_joined(rng: np.random.Generator) -> None:
    """A 3x3 convolution that shifts the image, and a 3x3 convolution, become a 5x5 convolution."""
    draft = GraphDraft(rng)
    x = draft.input((1, 9, 9, 4))
    data = np.zeros((3, 3, 4), np.int8)
    data[[0, 2, 1, 0], [0, 2, 1, 1], range(4)] = 1
    shift = draft.graph.add_tensor(Tensor("shift", data.shape, "int8", IDENTITY, data))
    window: dict[str, Any] = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
    y = draft.node("depthwise_conv2d", [x, shift], (1, 7, 7, 4), like=x, **window)
    weights = draft.constant((6, 3, 3, 4), quantization=Quantization.per_tensor(0.01))
    weights.data[weights.data == -128] = -127  # type: ignore[index]
    z = draft.node("conv2d", [y, weights], (1, 5, 5, 6), **POINT)
    made = equal_after(compose_convolutions, draft.graph.finish([z.name]), draft)
    (node,) = made
    assert made.ins(node)[1].shape == (6, 5, 5, 4)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("multiplier", [2, 3, 4, 6])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_several_outputs_per_channel_equal_litert(
    rng: np.random.Generator, tmp_path: Path, rounding: Kernels, multiplier: int, dtype: str
) -> None:
    d = Draft(rng, dtype)
    x = d.input((1, 9, 11, 14))
    settings = options(
        "DepthwiseConv2D",
        padding=_SAME,
        strideH=1,
        strideW=1,
        dilationHFactor=1,
        dilationWFactor=1,
        fusedActivationFunction=0,
        depthMultiplier=multiplier,
    )
    weights = d.weights((1, 3, 3, 14 * multiplier), 3, x)
    d.outputs = [d.op("DEPTHWISE_CONV_2D", [x, *weights], (1, 9, 11, 14 * multiplier), settings, scale=0.3)]
    for target in ("n8", "n16"):
        check(d, tmp_path, rounding, target=target)
    graph = simplify(read(d, tmp_path))
    repeated, found = repeat_channels(graph)
    assert len(found) == (multiplier > 2) and repeat_channels(repeated)[0] is repeated
    assert [each.name for each in compile(graph, "n16").rewritten] == ["repeat_channels"] * len(found)


def test_passes_are_switched_and_reported(tmp_path: Path) -> None:
    assert {each.__name__ for each in KERNEL_PASSES} < PASSES.keys()
    weights = np.zeros((8, 5, 5, 8), np.int8)
    weights[:, 1:4, 1:4] = 3
    _, graph = taps_of(weights, 9)
    network = compile(graph, "n4")
    (only,) = network.rewritten
    assert only.name == "shrink_kernels" and "5x5 -> 3x3" in only.change
    path = tmp_path / "network.mla"
    path.write_bytes(to_bytes(network))
    assert [vars(each) for each in read_package(path).rewritten] == [vars(only)]
    unchanged = compile(graph, "n4", disable=["shrink_kernels"])
    assert not unchanged.rewritten and unchanged.layers[0].macs > network.layers[0].macs
    image = np.random.default_rng(2).integers(-128, 128, (1, 9, 9, 8)).astype(np.int8)
    for name, array in unchanged(image).items():
        np.testing.assert_array_equal(network(image)[name], array)
