"""Random graphs of all accelerator operators give the host's results on the golden model and on the RTL.

`make soak` tries ten times as many, with other seeds.
"""

import sys

import numpy as np
import pytest

from compiler.ir.tensor import Quantization, Tensor
from tests.support.graphs import Draft, check
from tests.support.strategies.examples import GOLDEN, RTL, TENTH, check_examples
from tests.support.strategies.graphs import Tally, graphs
from tests.support.strategies.graphs import check as check_grown


@pytest.mark.parametrize(("count", "rtl"), [(GOLDEN, False), (RTL, True)], ids=["golden", "rtl"])
def test_random_graphs_equal_the_host_operators(count: int, rtl: bool) -> None:
    tally = Tally()
    check_examples(graphs(), lambda grown: check_grown(grown, tally, rtl=rtl), count // TENTH)
    print(tally, file=sys.stderr)
    tally.check(operators=6 if rtl else 24, share=0.9)


def test_groups_share_the_following_table() -> None:
    """The groups of a convolution share one table if there are fewer table slots than groups."""
    draft = Draft(np.random.default_rng(1))
    x, weights = (
        draft.input((1, 5, 6, 27)),
        draft.constant((27, 2, 2, 1), quantization=Quantization.per_tensor(0.01)),
    )
    y = draft.node(
        "conv2d",
        [x, weights],
        (1, 4, 5, 27),
        scale=0.2,
        strides=(1, 1),
        pads=(0,) * 4,
        dilations=(1, 1),
        groups=27,
    )
    network = check(draft, [draft.node("hard_swish", [y], y.shape, scale=0.1)], "n4")
    assert len(network.layers) == 1


@pytest.mark.parametrize(
    ("dilations", "zero", "channels"), [((2, 3), 0, 24), ((1, 1), 5, 17), ((1, 2), -9, 32)]
)
def test_depthwise_convolutions_that_cannot_be_streamed(
    dilations: tuple[int, int], zero: int, channels: int
) -> None:
    draft = Draft(np.random.default_rng(2))
    x = draft.input((1, 9, 11, channels))
    weights = draft.constant((3, 2, channels), quantization=Quantization.per_tensor(0.01, zero))
    shape = (1, 11 - 2 * dilations[0], 11 - dilations[1], channels)
    y = draft.node(
        "depthwise_conv2d",
        [x, weights],
        shape,
        scale=1.0,
        strides=(1, 1),
        pads=(1, 1, 1, 0),
        dilations=dilations,
    )
    assert not check(draft, [y]).host


@pytest.mark.parametrize("op", ["add", "sub", "mul"])
def test_operand_of_one_element_with_one_channel(op: str) -> None:
    draft = Draft(np.random.default_rng(3))
    a, b = draft.input((1, 6, 1)), draft.input((1,))
    network = check(draft, [draft.node(op, [a, b], a.shape, scale=0.5)], within=int(op == "sub"))
    assert not network.host


def test_long_reduction_is_split_if_its_weights_do_not_fit() -> None:
    """A reduction is split if the weights of one kernel row do not fit."""
    draft = Draft(np.random.default_rng(4))
    x, weights = draft.input((1, 1, 3, 6545)), draft.constant((12, 1, 3, 6545))
    window = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "groups": 1}
    assert not check(
        draft, [draft.node("conv2d", [x, weights], (1, 1, 1, 12), scale=1e4, **window)], "n16"
    ).host


@pytest.mark.parametrize("op", ["conv2d", "dense", "add"])
def test_onnxruntime_rounding_of_sums_is_half_to_even(op: str) -> None:
    """Ties of sums, which are exact in float32 if the scales are powers of two, round to even."""
    draft = Draft(np.random.default_rng(5))
    shape = (1, 6, 6, 16)
    names = [Tensor(name, shape, "int8", Quantization.per_tensor(0.25, 3)) for name in ("x", "other")]
    y, other = (draft.graph.add_input(tensor) for tensor in names)
    if op != "add":
        weights = draft.constant(
            (16, 1, 1, 16) if op == "conv2d" else (16, 16), quantization=Quantization.per_tensor(2**-7)
        )
        window = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "groups": 1}
        y = draft.node(op, [y, weights], shape, scale=8.0, **(window if op == "conv2d" else {}))
    network = check(draft, [draft.node("add", [y, other], shape, scale=16.0)], rounding="onnxruntime")
    assert len(network.layers) == 1


@pytest.mark.parametrize(("pads", "counted"), [((0, 0, 0, 0), False), ((1, 0, 1, 1), True)])
def test_onnxruntime_rounding_of_averages_is_half_to_even(pads: tuple[int, ...], counted: bool) -> None:
    """Averages halfway between two integers are rounded to the even one, including when input and output are
    quantized differently.
    """
    draft = Draft(np.random.default_rng(6))
    x = draft.graph.add_input(Tensor("x", (1, 8, 8, 20), "int8", Quantization.per_tensor(0.25, -9)))
    shape = (1, (8 + pads[0] + pads[2]) // 2, (8 + pads[1] + pads[3]) // 2, 20)
    window = {"kernel": (2, 2), "strides": (2, 2), "pads": pads, "count_pads": counted}
    ends = [
        draft.node("avg_pool2d", [x], shape, like=x, **window),
        draft.node("avg_pool2d", [x], shape, scale=0.125, dtype="uint8", **window),
    ]
    assert not check(draft, ends, rounding="onnxruntime").host


@pytest.mark.parametrize("inner", [True, False])
def test_requantizing_transpose_is_not_fused_into_a_product(inner: bool) -> None:
    draft = Draft(np.random.default_rng(7))
    a, b = draft.input((3, 6, 9)), draft.input((3, 9, 6))
    if inner:
        b = draft.node("transpose", [b], (3, 9, 6), scale=0.2, perm=(0, 1, 2))
    y = draft.node("matmul", [a, b], (3, 6, 6), scale=2.0)
    check(draft, [draft.node("transpose", [y], y.shape, scale=1.0, perm=(0, 1, 2))])


def test_consecutive_layers_that_fill_the_parameter_slots() -> None:
    draft = Draft(np.random.default_rng(8))
    x = draft.input((98, 10))
    y = draft.node(
        "dense",
        [x, draft.constant((15, 10), quantization=Quantization.per_tensor(0.01))],
        (98, 15),
        scale=1.0,
    )
    image = draft.node("reshape", [y], (1, 2, 3, 245), like=y, shape=(1, 2, 3, 245))
    weights = draft.constant((1, 1, 245), quantization=Quantization.per_tensor(0.01))
    window = {"strides": (3, 2), "pads": (0, 0, 0, 2), "dilations": (1, 1)}
    check(
        draft, [draft.node("depthwise_conv2d", [image, weights], (1, 1, 1, 245), scale=2.0, **window)], "n4"
    )


@pytest.mark.parametrize("op", ["add", "sub", "mul"])
def test_scalar_constant_after_a_dense_layer_is_fused(op: str) -> None:
    draft = Draft(np.random.default_rng(9))
    x, weights = draft.input((3, 10)), draft.constant((12, 10), quantization=Quantization.per_tensor(0.01))
    y = draft.node("dense", [x, weights], (3, 12), scale=1.0)
    network = check(draft, [draft.node(op, [y, draft.constant(())], y.shape, scale=2.0)])
    assert len(network.layers) == 1


@pytest.mark.parametrize("slopes", [21, 1])
@pytest.mark.parametrize(("rounding", "within"), [("reference", 1), ("onnxruntime", 0)])
def test_prelu_with_slopes_per_channel(slopes: int, rounding: str, within: int) -> None:
    draft = Draft(np.random.default_rng(10))
    x, held = (
        draft.input((1, 6, 5, 21), "uint8"),
        draft.constant((slopes,), quantization=Quantization.per_tensor(0.01)),
    )
    y = draft.node("prelu", [x, held], x.shape, scale=0.1)
    z = draft.node("max_pool2d", [y], x.shape, like=y, kernel=(1, 1), strides=(1, 1), pads=(0,) * 4)
    assert not check(draft, [y, z], rounding=rounding, within=within if slopes > 1 else 0).host


def test_consecutive_groups_share_the_scratchpad() -> None:
    """Two groups of a convolution use the scratchpad one after the other if the weights of only one group fit."""
    draft = Draft(np.random.default_rng(11))
    x, weights = (
        draft.input((1, 1, 1, 6000)),
        draft.constant((20, 1, 4, 3000), quantization=Quantization.per_tensor(0.01)),
    )
    window = {"strides": (1, 3), "pads": (0, 6, 0, 2), "dilations": (1, 2), "groups": 2}
    assert not check(
        draft, [draft.node("conv2d", [x, weights], (1, 1, 1, 20), scale=99.0, **window)], "n16"
    ).host
