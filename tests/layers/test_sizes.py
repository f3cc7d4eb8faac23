"""Layers that are wider, longer or deeper than the memories are cut until they fit, with exact results."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler.api import compile
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization, Tensor
from compiler.options import MemoryLimits
from compiler.reference import evaluate
from compiler.runtime.session import dram_bytes
from compiler.schedule.schedule import ALL_COLUMNS
from cosim.golden import GoldenDevice
from tests.support import tflite_cases as cases
from tests.support.graphs import Draft, check, run_on
from tests.support.sized_layers import SizedDraft, check_exact, compiled, sized_layer
from tests.support.tflite_models import Draft as TfliteDraft
from tests.support.tflite_models import check as check_litert

#: Random layers that, without cuts along all dimensions, cannot be compiled or need an unreasonable number of cycles.
ONCE_REFUSED = (
    ("convolution", 10),
    ("convolution", 13),
    ("convolution", 14),
    ("depthwise", 19),
    ("depthwise", 20),
    ("transposed", 4),
    ("transposed", 17),
    ("transposed", 23),
    ("pool", 6),
    ("pool", 8),
    ("softmax", 3),
    ("elementwise", 14),
    ("move", 5),
)
LITERT = {
    "convolution": cases.convolution,
    "depthwise": cases.depthwise,
    "average_pool": cases.pool("AVERAGE_POOL_2D"),
    "max_pool": cases.pool("MAX_POOL_2D"),
}


@pytest.mark.parametrize(("kind", "seed"), ONCE_REFUSED)
def test_long_layers_are_exact(kind: str, seed: int) -> None:
    draft, graph = sized_layer(kind, seed)
    network = compiled(graph)
    assert not network.host
    check_exact(kind, draft, network)


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the cases' images between 700 and 3,000 columns wide."""

    def shape(draft: TfliteDraft, _rank: int, _most: int = 7) -> tuple[int, ...]:
        columns = int(draft.rng.integers(700, 3000))
        return (1, int(draft.rng.integers(1, 6)), columns, int(draft.rng.integers(1, 20)))

    monkeypatch.setattr(cases, "shape_of", shape)


@pytest.mark.parametrize("rounding", ["reference", "xnnpack"])
@pytest.mark.parametrize("name", LITERT)
@pytest.mark.usefixtures("wide")
def test_wide_layers_equal_litert(name: str, rounding: str, tmp_path: Path) -> None:
    cut = 0
    for seed in range(3):
        print(f"seed {seed}")
        draft = TfliteDraft(np.random.default_rng(seed), "int8")
        LITERT[name](draft)
        network = check_litert(draft, tmp_path, rounding)
        assert not network.host
        cut += any(layer.strip_width < ALL_COLUMNS for layer in network.schedule.layers.values())
    assert cut or name not in ("convolution", "depthwise")


@pytest.mark.usefixtures("wide")
def test_memory_limits_apply(tmp_path: Path) -> None:
    draft = TfliteDraft(np.random.default_rng(4), "int8")
    cases.convolution(draft)
    path = tmp_path / "model.tflite"
    path.write_bytes(draft.file())
    inputs = [draft.values(name) for name in draft.inputs]
    plain = compile(path, "n8", cache=False)
    small = compile(path, "n8", limits=MemoryLimits(acc_bytes=1 << 12), cache=False)
    widths = [min(layer.strip_width for layer in made.schedule.layers.values()) for made in (plain, small)]
    assert widths[1] < widths[0]
    for name, values in plain(*inputs).items():
        np.testing.assert_array_equal(values, small(*inputs)[name])


def _with_residual() -> tuple[Draft, Graph]:
    """Return a network with a strided convolution, a dilated depthwise convolution, an addition and a pool."""
    draft = SizedDraft((7,))
    x = draft.input((1, 9, 50, 5))
    weights, bias, scale = draft.weighted((12, 3, 3, 5), 0, 45)
    window = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1)}
    a = draft.node("conv2d", [x, weights, bias], (1, 9, 50, 12), scale=scale / 10, **window, groups=1)
    weights, bias, scale = draft.weighted((3, 3, 12), 2, 9)
    b = draft.node("depthwise_conv2d", [a, weights, bias], (1, 9, 50, 12), scale=scale / 10, **window)
    c = draft.node("add", [b, a], (1, 9, 50, 12), scale=0.2)
    pool = {"kernel": (2, 3), "strides": (1, 2), "pads": (0, 1, 0, 1)}
    y = draft.node("avg_pool2d", [c], (1, 8, 25, 12), like=c, **pool, count_pads=False)
    return draft, draft.graph.finish([y.name])


@pytest.mark.parametrize("on_chip", [False, True])
@pytest.mark.parametrize("width", [3, 7, 16])
def test_strips_do_not_change_results(width: int, *, on_chip: bool) -> None:
    draft, graph = _with_residual()
    first = compile(graph, "n8", cache=False, strict=True)
    layers = {
        name: replace(layer, strip_width=width, on_chip=on_chip, rows=2)
        for name, layer in first.schedule.layers.items()
    }
    network = compile(graph, "n8", schedule=replace(first.schedule, layers=layers), cache=False)
    inputs = draft.random_inputs()
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        found = run_on(device, network, inputs)
    for name, wanted in evaluate(graph, inputs).items():
        np.testing.assert_array_equal(found[name], wanted)


def _dilated(
    op: str, shape: tuple[int, ...], kernel: tuple[int, int], dilations: tuple[int, int]
) -> tuple[Draft, Tensor, Tensor]:
    """Return a graph with a dilated convolution whose output has the shape of its input, its input and output."""
    draft, channels = SizedDraft(dilations), shape[3]
    x = draft.input(shape)
    depthwise = op == "depthwise_conv2d"
    weights, bias, scale = draft.weighted(
        (*kernel, channels) if depthwise else (channels, *kernel, channels),
        2 if depthwise else 0,
        kernel[0] * kernel[1] * (1 if depthwise else channels),
    )
    attributes: dict[str, Any] = {} if depthwise else {"groups": 1}
    reach = [(size - 1) * dilation for size, dilation in zip(kernel, dilations, strict=True)]
    y = draft.node(
        op,
        [x, weights, bias],
        shape,
        scale=scale / 10,
        strides=(1, 1),
        dilations=dilations,
        pads=(*(each // 2 for each in reach), *(each - each // 2 for each in reach)),
        **attributes,
    )
    return draft, x, y


@pytest.mark.parametrize("kernel", [(3, 3), (4, 2)])
@pytest.mark.parametrize("dilations", [(2, 3), (1, 5), (3, 1)])
def test_dilated_depthwise_convolutions_with_residuals(
    dilations: tuple[int, int], kernel: tuple[int, int]
) -> None:
    draft, x, y = _dilated("depthwise_conv2d", (1, 41, 53, 20), kernel, dilations)
    z = draft.node("add", [y, x], x.shape, scale=0.2)
    network = check(draft, [z], "n8")
    assert len(network.layers) == 1


@pytest.mark.parametrize(
    ("shape", "kernel", "dilation", "target"),
    [
        ((1, 33, 33, 480), (3, 3), 12, "n16"),
        ((1, 40, 300, 48), (3, 3), 36, "n16"),
        ((1, 40, 100, 96), (5, 5), 6, "n16"),
        ((1, 1, 4000, 64), (1, 3), 512, "n8"),
        ((1, 90, 90, 20), (3, 3), 40, "n4"),
    ],
)
def test_depthwise_convolutions_with_long_dilations(
    shape: tuple[int, ...], kernel: tuple[int, int], dilation: int, target: str
) -> None:
    dilations = tuple(dilation if size > 1 else 1 for size in kernel)
    draft, _, y = _dilated("depthwise_conv2d", shape, kernel, dilations)  # type: ignore[arg-type]
    assert not check(draft, [y], target).host


@pytest.mark.parametrize("op", ["conv2d", "depthwise_conv2d"])
@pytest.mark.parametrize("residual", [False, True])
def test_convolutions_whose_dilated_rows_do_not_fit_the_scratchpad(op: str, *, residual: bool) -> None:
    kernel, dilations = (3, 3) if residual else (4, 2), (41, 50)
    draft, x, y = _dilated(op, (1, 125, 120, 20), kernel, dilations)
    z = draft.node("add", [y, x], x.shape, scale=0.2) if residual else y
    network = check(draft, [z], "n8")
    assert len(network.layers) == 1
    rows = {layer.rows for layer in network.schedule.layers.values()}
    assert max(rows) <= -(-125 // dilations[0])  # the rows of one phase


def _branches(shape: tuple[int, int, int, int], channels: int) -> tuple[Draft, Tensor]:
    """Return a graph of two convolutions of the same input, whose outputs are concatenated, and its output."""
    draft, made = SizedDraft(shape), (*shape[:3], channels)
    x = draft.input(shape)
    window = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "groups": 1}
    outputs: list[Tensor] = []
    for _ in range(2):
        weights, bias, scale = draft.weighted((channels, 3, 3, shape[3]), 0, 9 * shape[3])
        like = outputs[0] if outputs else None
        outputs.append(draft.node("conv2d", [x, weights, bias], made, like=like, scale=scale / 10, **window))
    return draft, draft.node("concat", outputs, (*made[:3], 2 * channels), like=outputs[0], axis=3)


@pytest.mark.parametrize(("columns", "target"), [(1500, "n16"), (400, "n16"), (1000, "n8")])
def test_packed_pixels_among_other_channels(columns: int, target: str) -> None:
    """Adjacent pixels cannot be computed as one if they are stored among the channels of another tensor."""
    draft, y = _branches((1, 3, columns, 3), 4)
    network = check(draft, [y], target)
    assert not network.host
    assert max(layer.pixels_per_pass for layer in network.schedule.layers.values()) > 1


@pytest.mark.parametrize(("columns", "target"), [(900, "n16"), (1000, "n8")])
def test_two_layers_that_each_fill_the_accumulator(columns: int, target: str) -> None:
    draft, y = _branches((1, 1, columns, 3), 16)
    assert not check(draft, [y], target).host


@pytest.mark.parametrize("columns", [1024, 1500])
def test_wide_images_of_int16_equal_litert(
    columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cases, "shape_of", lambda *_: (1, 3, columns, 3))
    draft = TfliteDraft(np.random.default_rng(1), "int16")
    cases.convolution(draft)
    assert not check_litert(draft, tmp_path, "reference").host


@pytest.mark.parametrize("strides", [(16, 1), (1, 17), (20, 31)])
def test_depthwise_convolutions_with_large_strides(strides: tuple[int, int]) -> None:
    """Strides that do not fit the fields of the depthwise mode."""
    draft = SizedDraft(strides)
    weights, bias, scale = draft.weighted((5, 3, 12), 2, 15)
    sizes = tuple(
        (size - kernel) // step + 1 for size, kernel, step in zip((45, 67), (5, 3), strides, strict=True)
    )
    y = draft.node(
        "depthwise_conv2d",
        [draft.input((1, 45, 67, 12)), weights, bias],
        (1, *sizes, 12),
        scale=scale / 10,
        strides=strides,
        dilations=(1, 1),
        pads=(0, 0, 0, 0),
    )
    check(draft, [y], "n8")


@pytest.mark.parametrize("step", [1 / 256, 0.0031])
@pytest.mark.parametrize(("columns", "target"), [(17_000, "n4"), (40_000, "n8")])
def test_softmax_of_long_rows_with_a_small_tail(columns: int, target: str, step: float) -> None:
    """Many exponentials that are small individually contribute to the sum."""
    draft = Draft(np.random.default_rng(3))
    x = draft.graph.add_input(Tensor("x", (2, columns), "int8", Quantization.per_tensor(0.1, 3)))
    y = Tensor("y", x.shape, "int8", Quantization.per_tensor(step, -128))
    draft.into("softmax", [x], y, axis=1, beta=1.0)
    network = compile(draft.graph.finish(["y"]), target, cache=False, strict=True)
    assert next(iter(network.schedule.layers.values())).columns < columns / network.config.n
    values = draft.rng.integers(-128, -120, x.shape).astype(np.int8)
    values[:, columns // 3] = -128 + 100
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        found = run_on(device, network, {"x": values})["y"]
    np.testing.assert_array_equal(found, evaluate(draft.graph, {"x": values})["y"])
