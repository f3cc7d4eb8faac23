"""Batches of images give the same outputs as single images."""

from typing import Any

import numpy as np
import pytest

from compiler.ir.tensor import Tensor
from tests.support.graphs import Draft, check


def conv(
    draft: Draft, x: Tensor, outputs: int, kernel: int, stride: int = 1, pad: int = 0, groups: int = 1
) -> Tensor:
    weights = draft.constant((outputs, kernel, kernel, x.shape[3] // groups))
    h, w = ((size + 2 * pad - kernel) // stride + 1 for size in x.shape[1:3])
    return draft.node(
        "conv2d",
        [x, weights],
        (x.shape[0], h, w, outputs),
        scale=40.0,
        strides=(stride, stride),
        dilations=(1, 1),
        pads=(pad,) * 4,
        groups=groups,
    )


def depthwise(draft: Draft, x: Tensor, kernel: int, stride: int = 1, pad: int = 0) -> Tensor:
    meaning = draft.quantization().per_tensor(0.1)
    weights = draft.constant((kernel, kernel, x.shape[3]), quantization=meaning)
    h, w = ((size + 2 * pad - kernel) // stride + 1 for size in x.shape[1:3])
    return draft.node(
        "depthwise_conv2d",
        [x, weights],
        (x.shape[0], h, w, x.shape[3]),
        scale=10.0,
        strides=(stride, stride),
        dilations=(1, 1),
        pads=(pad,) * 4,
    )


def pool(draft: Draft, x: Tensor, op: str, kernel: int, stride: int, pad: int) -> Tensor:
    h, w = ((size + 2 * pad - kernel) // stride + 1 for size in x.shape[1:3])
    more: dict[str, Any] = {"count_pads": False} if op == "avg_pool2d" else {}
    return draft.node(
        op,
        [x],
        (x.shape[0], h, w, x.shape[3]),
        like=x,
        kernel=(kernel, kernel),
        strides=(stride, stride),
        pads=(pad,) * 4,
        **more,
    )


@pytest.mark.parametrize("target", ["n4", "n16"])
@pytest.mark.parametrize("kind", ["plain", "strided", "grouped", "flat", "wide"])
def test_convolutions(rng: np.random.Generator, kind: str, target: str) -> None:
    draft, batch = Draft(rng), int(rng.integers(2, 5))
    kernel, stride, pad, groups, outputs = {
        "plain": (3, 1, 1, 1, 12),
        "strided": (3, 2, 1, 1, 20),
        "grouped": (3, 1, 0, 2, 8),
        "flat": (1, 1, 0, 1, 24),
        "wide": (5, 1, 2, 1, 70),
    }[kind]
    x = draft.input((batch, 11, 9, 6))
    first = conv(draft, x, 8, 3, 1, 1)
    network = check(draft, [conv(draft, first, outputs, kernel, stride, pad, groups)], target)
    assert not network.host


@pytest.mark.parametrize("target", ["n4", "n16"])
def test_batch_of_images_through_many_operators(rng: np.random.Generator, target: str) -> None:
    draft, batch = Draft(rng), int(rng.integers(2, 5))
    x = conv(draft, draft.input((batch, 13, 10, 3)), 24, 3, 1, 1)
    y = depthwise(draft, x, 3, 1, 1)
    y = conv(draft, y, 24, 1)
    y = draft.node("add", [y, x], x.shape, scale=20.0)
    y = draft.node("clip", [y], x.shape, like=y, low=0.0, high=1000.0)
    z = depthwise(draft, y, 3, 2, 1)
    pooled = [pool(draft, z, "max_pool2d", 3, 2, 1), pool(draft, z, "avg_pool2d", 3, 2, 1)]
    joined = draft.node("concat", pooled, (*pooled[0].shape[:3], 48), like=pooled[0], axis=3)
    h, w = joined.shape[1:3]
    mean = draft.node(
        "avg_pool2d",
        [joined],
        (batch, 1, 1, 48),
        like=joined,
        kernel=(h, w),
        strides=(1, 1),
        pads=(0,) * 4,
        count_pads=False,
    )
    flat = draft.node("reshape", [mean], (batch, 48), like=mean, shape=(batch, 48))
    scores = draft.node("dense", [flat, draft.constant((10, 48))], (batch, 10), scale=2.0)
    assert not check(draft, [scores, z], target, within=1).host


@pytest.mark.parametrize("size", [(5, 7), (20, 30)])
def test_average_pool_of_large_images(rng: np.random.Generator, size: tuple[int, int]) -> None:
    draft = Draft(rng)
    x = conv(draft, draft.input((3, *size, 5)), 5, 1)
    y = draft.node(
        "avg_pool2d", [x], (3, 1, 1, 5), like=x, kernel=size, strides=(1, 1), pads=(0,) * 4, count_pads=False
    )
    assert not check(draft, [y]).host


@pytest.mark.parametrize("stride", [1, 2])
def test_transposed_convolutions(rng: np.random.Generator, stride: int) -> None:
    draft = Draft(rng)
    x = draft.input((3, 5, 4, 6))
    weights = draft.constant((7, 2, 2, 6))
    made = (3, 4 * stride + 2, 3 * stride + 2, 7)
    y = draft.node(
        "conv_transpose2d",
        [x, weights],
        made,
        scale=40.0,
        strides=(stride, stride),
        dilations=(1, 1),
        pads=(0,) * 4,
        groups=1,
        output_pads=(),
    )
    assert not check(draft, [y]).host


def test_transposed_convolution_that_runs_on_the_host(rng: np.random.Generator) -> None:
    draft = Draft(rng)
    x = draft.input((2, 5, 4, 6))
    y = draft.node(
        "conv_transpose2d",
        [x, draft.constant((7, 3, 3, 6))],
        (2, 11, 9, 7),
        scale=40.0,
        strides=(2, 2),
        dilations=(1, 1),
        pads=(0,) * 4,
        groups=1,
        output_pads=(),
    )
    (node,) = check(draft, [y]).host
    assert "the 11 rows of an image must be a multiple of the stride in a batch" in node.reason
