"""Random TFLite networks of sequential and parallel operators give the same results as LiteRT."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from tests.support.int16_networks import extremes, leaky, pad, resize, shape_of, strided_slice
from tests.support.one_operator import options
from tests.support.tflite_models import Draft, check

Part = Callable[[Draft, str], str]


def conv(d: Draft, x: str) -> str:
    (n, h, w, c), out = shape_of(d, x), int(d.rng.integers(1, 20))
    kernel = int(d.rng.choice([1, 3]))
    weights, bias = d.weights((out, kernel, kernel, c), 0, x)
    settings = options(
        "Conv2D",
        padding=schema.Padding.SAME,
        strideH=1,
        strideW=1,
        dilationHFactor=1,
        dilationWFactor=1,
        fusedActivationFunction=int(d.rng.choice([0, 1])),
    )
    return d.op("CONV_2D", [x, weights, bias], (n, h, w, out), settings, scale=0.3)


def gelu(d: Draft, x: str) -> str:
    return d.op("GELU", [x], shape_of(d, x), options("Gelu", approximate=False))


def branches(d: Draft, x: str) -> str:
    """Return the concatenation of two convolutions, one of which follows a pool."""
    (n, h, w, c) = shape_of(d, x)
    settings = options(
        "Pool2D",
        padding=schema.Padding.SAME,
        strideH=1,
        strideW=1,
        filterHeight=3,
        filterWidth=3,
        fusedActivationFunction=0,
    )
    pooled = d.op("MAX_POOL_2D", [x], (n, h, w, c), settings, like=x)
    a = conv(d, pooled)
    b = d.op("QUANTIZE", [conv(d, x)], shape_of(d, d.outputs[-1]), options("Quantize"), like=a)
    whole = (n, h, w, shape_of(d, a)[3] + shape_of(d, b)[3])
    return d.op("CONCATENATION", [a, b], whole, options("Concatenation", axis=3), like=a)


def attention(d: Draft, x: str) -> str:
    """Add attention among pixels, which consists of two batched products."""
    n, h, w, c = shape_of(d, x)
    rows = d.op("RESHAPE", [x, d.held([n, h * w, c])], (n, h * w, c), like=x)
    settings = options("BatchMatMul", adjX=False, adjY=True, asymmetricQuantizeInputs=False)
    scores = d.op("BATCH_MATMUL", [rows, rows], (n, h * w, h * w), settings, scale=0.5)
    gates = d.op("LOGISTIC", [scores], (n, h * w, h * w), scale=1 / 256, zero=-128)
    settings = options("BatchMatMul", adjX=False, adjY=False, asymmetricQuantizeInputs=False)
    made = d.op("BATCH_MATMUL", [gates, rows], (n, h * w, c), settings, scale=0.4)
    return d.op("RESHAPE", [made, d.held([n, h, w, c])], (n, h, w, c), like=made)


def add(d: Draft, x: str) -> str:
    y = leaky(d, x)
    return d.op("ADD", [x, y], shape_of(d, x), options("Add", fusedActivationFunction=0, potScaleInt16=False))


PARTS: tuple[Part, ...] = (
    conv,
    leaky,
    gelu,
    branches,
    extremes,
    resize,
    pad,
    strided_slice,
    attention,
    add,
)


def random_network(rng: np.random.Generator, length: int) -> Draft:
    """Return a network of random parts in sequence; `length` is the number of parts."""
    draft = Draft(rng, "int8")
    name = draft.input((1, *(int(size) for size in rng.integers(2, 8, 2)), int(rng.integers(1, 17))))
    for number in rng.integers(len(PARTS), size=length):
        name = PARTS[number](draft, name)
    draft.then(name if name in draft.outputs else leaky(draft, name))
    return draft


@pytest.mark.parametrize("rounding", ["reference", "xnnpack"])
@pytest.mark.parametrize("target", ["n4", "n8", "n16"])
def test_random_networks_equal_litert(
    target: str, rounding: str, rng: np.random.Generator, tmp_path: Path
) -> None:
    for _ in range(3):
        network = check(random_network(rng, 6), tmp_path, rounding, target=target)
        assert [node.reason for node in network.host] == []
