"""Fixtures for several conftest.py files: a network of two convolutions, and a `Measurer` that measures it on n4."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization
from compiler.options import CompileOptions
from compiler.profile.measurement import HardwareProfile
from compiler.tuning.measure.measurer import Measurer
from hw.config import load_target
from tests.support.graphs import Draft

OPTIONS = CompileOptions(rounding="reference")
EVEN = Quantization.per_tensor(0.05, 0)
#: Environment in which scripts started by tests can import the modules in tests/.
HERE = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}


def two_convolutions() -> Graph:
    """Return a graph with a 3x3 and a 1x1 convolution whose results cover the range of int8."""
    draft = Draft(np.random.default_rng(3))
    window: dict[str, Any] = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
    x = draft.input((1, 9, 9, 8))
    wide = draft.node(
        "conv2d", [x, draft.constant((12, 3, 3, 8), quantization=EVEN)], (1, 9, 9, 12), scale=4.0, **window
    )
    point: dict[str, Any] = window | {"pads": (0, 0, 0, 0)}
    y = draft.node(
        "conv2d", [wide, draft.constant((8, 1, 1, 12), quantization=EVEN)], (1, 9, 9, 8), scale=60.0, **point
    )
    return draft.graph.finish([y.name])


@pytest.fixture(scope="session")
def graph() -> Graph:
    """Return a graph of two convolutions."""
    return two_convolutions()


@pytest.fixture(scope="session")
def measurer(graph: Graph) -> Iterator[Measurer]:
    """Yield a measurer of the two convolutions on n4."""
    with Measurer(graph, HardwareProfile(load_target("n4")), OPTIONS, devices=1) as made:
        yield made
