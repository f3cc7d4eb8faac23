"""Element-wise layers, pools and softmax reach their share of the bus on the RTL (n16), and equal the host's operators.

Attention reaches its share of the array.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from compiler.api import compile
from compiler.ir.tensor import Quantization, Tensor
from compiler.options import DramTiming
from compiler.reference import evaluate
from compiler.runtime.device import open_device
from compiler.runtime.run_report import run_samples
from tests.support.graphs import Draft, attention

#: DRAM bytes per cycle.
RATE = 16
#: Operator, shapes of its operands, DRAM latency, and minimum share of (bytes of operands and result / RATE) / cycles.
STREAMS = (
    ("clip", [(1, 56, 56, 33)], 100, 0.95),
    ("add", [(100, 1003)] * 2, 100, 0.95),
    ("add", [(100, 1003)] * 2, 400, 0.90),
    ("mul", [(1, 57, 43, 50), (1, 1, 1, 50)], 100, 0.93),
    ("add", [(1, 57, 43, 50), (1, 57, 43, 1)], 100, 0.93),
    ("add", [(1, 40, 40, 64), (1, 1, 40, 64)], 100, 0.93),
    ("add", [(4, 30_000), (30_000,)], 100, 0.97),
    ("add", [(3, 70_000), (70_000,)], 100, 0.97),
    ("mul", [(1, 8, 197, 197), (1, 1, 197, 197)], 100, 0.97),
    ("mul", [(2, 56, 56, 16), (2, 1, 1, 16)], 100, 0.96),
    ("mul", [(4, 28, 28, 100), (4, 1, 1, 100)], 100, 0.97),
    ("add", [(8, 7, 7, 256), (8, 1, 1, 256)], 100, 0.96),
    ("add", [(4, 28, 28, 24), (4, 1, 1, 24)], 400, 0.87),
    ("add", [(1, 56, 56, 64), (1, 56, 1, 64)], 100, 0.97),
    ("mul", [(4, 28, 28, 32), (1, 28, 28, 1)], 100, 0.95),
    ("add", [(1, 56, 1, 64), (1, 1, 56, 64)], 100, 0.94),
    ("mul", [(1, 112, 112, 3), (3,)], 100, 0.93),
    ("add", [(4, 64, 64, 5), (4, 1, 1, 5)], 100, 0.95),
    ("mul", [(1, 97, 101, 7), (1, 97, 101, 1)], 100, 0.94),
    ("add", [(1, 80, 80, 20), (1, 80, 80, 1)], 100, 0.93),
    ("add", [(1, 50, 1, 1), (1, 1, 60, 50)], 100, 0.93),
    ("mul", [(1, 1, 60, 50), (1, 50, 1, 1)], 400, 0.88),
    ("add", [(1, 64, 56, 1), (1, 1, 56, 64)], 100, 0.93),
    ("sub", [(1000, 1), (1, 100)], 100, 0.80),
    ("sub", [(1000, 1), (1, 150)], 100, 0.87),
    ("sub", [(1, 1, 60, 50), (1, 40, 1, 50)], 100, 0.74),
    ("add", [(1, 200, 1, 40), (1, 1, 50, 40)], 100, 0.81),
)
#: Operator, shapes of its operands, True if these are converted, and minimum share.
EXTREMES = (
    ("maximum", [(1, 48, 51, 48)] * 2, False, 0.95),
    ("minimum", [(1, 48, 51, 48)] * 2, True, 0.95),
    ("maximum", [(1, 33, 37, 96), (1, 1, 1, 96)], True, 0.93),
    ("minimum", [(1, 33, 37, 95), (95,)], False, 0.93),
)
#: Shapes of x and of the slopes of a PReLU, True for slopes of both signs, and minimum share.
PRELUS = (
    ((1, 56, 56, 32), (32,), True, 0.96),
    ((4, 28, 28, 24), (24,), True, 0.96),
    ((1, 14, 14, 512), (512,), False, 0.93),
    ((1, 112, 112, 3), (3,), True, 0.92),
    ((1, 28, 28, 72), (28, 28, 72), False, 0.90),
    ((1, 28, 28, 72), (28, 28, 72), True, 0.90),
    ((1, 56, 56, 64), (56, 56, 64), True, 0.95),
    ((1, 40, 40, 64), (40, 40, 1), True, 0.96),
    ((1, 40, 40, 64), (40, 1, 1), True, 0.96),
    ((1, 64, 40, 40), (1, 40, 1), False, 0.96),
    ((100, 1000), (100, 1), True, 0.96),
    ((1, 64, 40, 40), (40, 40), True, 0.87),
)
#: Operator, shape, size and stride of the windows, True for padding, and minimum share.
POOLS = (
    ("max_pool2d", (1, 56, 56, 32), 2, 2, False, 0.85),
    ("max_pool2d", (1, 57, 57, 32), 3, 2, True, 0.50),
    ("max_pool2d", (1, 40, 40, 56), 3, 1, True, 0.30),
    ("max_pool2d", (1, 13, 13, 256), 5, 1, True, 0.18),
    ("avg_pool2d", (1, 35, 35, 48), 3, 1, True, 0.80),
    ("avg_pool2d", (1, 28, 28, 128), 28, 1, False, 0.85),
    ("avg_pool2d", (1, 56, 56, 40), 56, 1, False, 0.77),
    ("avg_pool2d", (1, 14, 14, 488), 14, 1, False, 0.81),
    ("max_pool2d", (1, 30, 30, 120), 30, 1, False, 0.83),
)
#: Shape, of which axis 1 is that of a softmax, and minimum share.
SOFTMAXES = (
    ((1, 21, 64, 64), 0.44),
    ((1, 20, 96, 80), 0.45),
    ((1, 32, 40, 40), 0.45),
    ((2, 21, 33, 33), 0.40),
    ((1, 150, 32, 32), 0.55),
    ((1, 2, 128, 128), 0.56),
    ((3, 2, 100, 64), 0.52),
    ((1, 3, 128, 128), 0.265),
    ((1, 4, 96, 96), 0.305),
    ((1, 5, 100, 100), 0.35),
    ((1, 6, 100, 100), 0.385),
    ((1, 7, 100, 100), 0.41),
    ((2, 8, 64, 64), 0.41),
    ((1, 13, 80, 80), 0.43),
    ((2, 21, 7, 7), 0.12),
    ((1, 3, 200, 150), 0.28),
    ((1, 1000, 14, 14), 0.27),
)


def _share(draft: Draft, name: str, latency: int, most: int = 0) -> float:
    """Run the graph with output `name`, and return the share of the cycles that the bus needs.

    Results may differ by at most `most`.
    """
    graph = draft.graph.finish([name])
    network = compile(graph, "n16", dram=DramTiming(latency, RATE))
    inputs = draft.random_inputs()
    with open_device(network, "rtl", 1, latency, RATE, lambda _text: None) as device:
        run = run_samples(device, network, [inputs], lambda _text: None, steadily=False)
    assert run.cycles is not None
    wanted = evaluate(graph, inputs)[name]
    found = run.outputs[name].reshape(wanted.shape)
    assert np.abs(found.astype(np.int64) - wanted).max() <= most
    share = sum(tensor.elements for tensor in graph.tensors.values()) / RATE / run.cycles[0]
    print(f"{run.cycles[0]:,} cycles, {share:.1%}")
    return share


@pytest.mark.parametrize(("op", "shapes", "latency", "least"), STREAMS)
def test_elementwise(op: str, shapes: list[tuple[int, ...]], latency: int, least: float) -> None:
    draft = Draft(np.random.default_rng(0))
    limits: dict[str, Any] = {"low": 0.0, "high": math.inf} if op == "clip" else {}
    inputs, made = [draft.input(shape) for shape in shapes], np.broadcast_shapes(*shapes)
    y = draft.node(op, inputs, made, scale=0.5, **limits)
    assert _share(draft, y.name, latency) >= least


@pytest.mark.parametrize(("op", "shapes", "converted", "least"), EXTREMES)
def test_extremes(op: str, shapes: list[tuple[int, ...]], converted: bool, least: float) -> None:
    draft = Draft(np.random.default_rng(0))
    made = np.broadcast_shapes(*shapes)
    meaning = Tensor("like", (), "int8", draft.quantization())
    given = [draft.input(shape) for shape in shapes]
    if converted:
        inputs = [draft.node("requantize", [each], each.shape, like=meaning) for each in given]
    else:
        given = [replace(each, quantization=meaning.quantization) for each in given]
        draft.graph.tensors.update({each.name: each for each in given})
        inputs = given
    y = draft.node(op, inputs, made, like=meaning)
    graph_share = _share(draft, y.name, 100)
    crossing = sum(each.elements for each in (*given, y))
    all_tensors = crossing + converted * sum(each.elements for each in inputs)
    assert graph_share * crossing / all_tensors >= least


@pytest.mark.parametrize(("shape", "slopes", "signed", "least"), PRELUS)
def test_prelu(shape: tuple[int, ...], slopes: tuple[int, ...], signed: bool, least: float) -> None:
    draft = Draft(np.random.default_rng(0))
    x, slope = draft.input(shape), draft.constant(slopes, quantization=Quantization.per_tensor(0.01))
    assert slope.data is not None
    if not signed:
        np.clip(np.abs(slope.data.astype(np.int64)), 0, 127, out=slope.data, casting="unsafe")
    y = draft.node("prelu", [x, slope], shape, scale=0.1)
    assert _share(draft, y.name, 100) >= least


@pytest.mark.parametrize("op", ["add", "sub", "mul"])
@pytest.mark.parametrize("function", ["clip", "hard_swish"])
def test_function_of_a_sum_takes_no_time(op: str, function: str) -> None:
    draft, shape = Draft(np.random.default_rng(0)), (1, 28, 28, 64)
    y = draft.node(op, [draft.input(shape), draft.input(shape)], shape, scale=0.5)
    limits: dict[str, Any] = {"low": 0.0, "high": math.inf} if function == "clip" else {}
    z = draft.node(function, [y], shape, like=y if function == "clip" else None, scale=0.3, **limits)
    graph_share = _share(draft, z.name, 100, int(op == "sub"))
    assert graph_share >= 0.95 * 4 / 3, (
        "the intermediate tensor, a quarter of all bytes, does not cross the bus"
    )


@pytest.mark.parametrize(("op", "shape", "size", "stride", "padded", "least"), POOLS)
def test_pools(op: str, shape: tuple[int, ...], size: int, stride: int, padded: bool, least: float) -> None:
    draft, pad = Draft(np.random.default_rng(0)), size // 2 * padded
    x = draft.input(shape)
    sizes = [(each + 2 * pad - size) // stride + 1 for each in shape[1:3]]
    window: dict[str, Any] = {"kernel": (size, size), "strides": (stride, stride), "pads": (pad,) * 4}
    if op == "avg_pool2d":
        window["count_pads"] = False
    y = draft.node(op, [x], (1, *sizes, shape[3]), like=x, **window)
    assert _share(draft, y.name, 100) >= least


@pytest.mark.parametrize(("shape", "least"), SOFTMAXES)
def test_softmax_over_columns(shape: tuple[int, ...], least: float) -> None:
    draft = Draft(np.random.default_rng(0))
    x = draft.input(shape)
    y = draft.node("softmax", [x], shape, scale=1 / 256, axis=1, beta=1.0)
    assert _share(draft, y.name, 100, 1) >= least


#: Operator, rows and columns of a normalization, and minimum share.
NORMS = (
    ("layer_norm", 256, 1024, 0.62),
    ("layer_norm", 64, 1280, 0.55),
    ("layer_norm", 256, 1536, 0.60),
    ("layer_norm", 512, 2048, 0.60),
    ("layer_norm", 256, 4096, 0.58),
    ("layer_norm", 67, 1500, 0.53),
    ("layer_norm", 100, 1001, 0.54),
    ("layer_norm", 51, 2000, 0.53),
    ("rms_norm", 64, 1280, 0.85),
    ("rms_norm", 256, 2048, 0.85),
    ("rms_norm", 128, 3072, 0.85),
    ("rms_norm", 256, 4096, 0.84),
)


@pytest.mark.parametrize(("op", "rows", "columns", "least"), NORMS)
def test_norms(op: str, rows: int, columns: int, least: float) -> None:
    """Parameters that exceed the slots are loaded once for many rows."""
    draft = Draft(np.random.default_rng(0))
    x = draft.input((rows, columns))
    even = Quantization.per_tensor(0.01)
    factors = [draft.constant((columns,), quantization=even) for _ in range(1 + (op == "layer_norm"))]
    y = draft.node(op, [x, *factors], x.shape, scale=0.03, axis=1, epsilon=1e-5)
    assert _share(draft, y.name, 100, 1) >= least


#: Heads, rows, columns and depth of attention, shape of the mask, and maximum cycles.
ATTENTIONS: tuple[tuple[tuple[int, int, int, int], tuple[int, ...], int], ...] = (
    ((12, 128, 128, 64), (), 99_700),
    ((12, 128, 128, 64), (1, 1, 1, 128), 99_700),
    ((12, 128, 128, 64), (1, 1, 128, 128), 99_700),
    ((3, 197, 197, 64), (), 62_700),
    ((3, 197, 197, 64), (197, 197), 62_700),
    ((1, 512, 512, 64), (), 133_000),
    ((4, 128, 128, 32), (), 20_700),
    ((4, 128, 128, 32), (1, 1, 1, 128), 20_700),
)


@pytest.mark.parametrize(("shape", "mask", "ceiling"), ATTENTIONS)
def test_attention(shape: tuple[int, int, int, int], mask: tuple[int, ...], ceiling: int) -> None:
    """Scores and softmax do not cross the bus, and FUSE never waits for a bank of the accumulator."""
    draft = Draft(np.random.default_rng(0))
    y = attention(draft, *shape, mask=mask)
    compulsory = sum(draft.graph.tensors[name].bytes for name in (*draft.graph.inputs, y.name))
    network = compile(draft.graph.finish([y.name]), "n16")
    with open_device(network, "rtl", 1, 100, RATE, lambda _text: None) as device:
        run = run_samples(device, network, [draft.random_inputs()], lambda _text: None, steadily=False)
    assert run.cycles is not None
    print(f"{shape}: {run.cycles[0]:,} cycles")
    assert run.cycles[0] <= ceiling
    totals = {name: sum(row[name] for row in run.counts.values()) for name in next(iter(run.counts.values()))}
    assert totals["load_bytes"] + totals["store_bytes"] <= compulsory + 1800  # with the table of the scale
    assert totals["acc_conflicts"] == 0
