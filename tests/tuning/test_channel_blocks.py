"""Convolutions in channel blocks, also with a pool after them, are exact in all loop orders and save cycles."""

from typing import Any

import numpy as np
import pytest

from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization
from compiler.options import CompileOptions
from compiler.profile.measurement import HardwareProfile, Measurement
from compiler.tuning.epilogue_chains import channel_block_tilings, pooled_pairs
from compiler.tuning.layer_space import LayerSpace, spaces_of
from compiler.tuning.measure.golden_inputs import GoldenModelReference
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.search.method import with_layer
from hw.config import load_target
from tests.support.graphs import Draft

OPTIONS = CompileOptions(rounding="reference")
EVEN = Quantization.per_tensor(0.05, 0)
WINDOW: dict[str, Any] = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "groups": 1}


def pooled(seed: int) -> Graph:
    """Return a graph of two convolutions, an average over the whole image, and a dense layer."""
    draft = Draft(np.random.default_rng(seed))
    x = draft.input((1, 8, 8, 24))
    first = draft.node(
        "conv2d", [x, draft.constant((32, 1, 1, 24), quantization=EVEN)], (1, 8, 8, 32), scale=4.0, **WINDOW
    )
    second = draft.node(
        "conv2d",
        [first, draft.constant((40, 1, 1, 32), quantization=EVEN)],
        (1, 8, 8, 40),
        scale=100.0,
        **WINDOW,
    )
    window: dict[str, Any] = {"kernel": (8, 8), "strides": (1, 1), "pads": (0, 0, 0, 0), "count_pads": False}
    mean = draft.node("avg_pool2d", [second], (1, 1, 1, 40), like=second, **window)
    y = draft.node(
        "conv2d",
        [mean, draft.constant((12, 1, 1, 40), quantization=EVEN)],
        (1, 1, 1, 12),
        scale=300.0,
        **WINDOW,
    )
    return draft.graph.finish([y.name])


@pytest.fixture(scope="module")
def measurer():
    with Measurer(pooled(4), HardwareProfile(load_target("n8")), OPTIONS, devices=1) as made:
        yield made


@pytest.fixture(scope="module")
def spaces(measurer: Measurer) -> dict[str, LayerSpace]:
    conditions, stages = measurer.conditions, measurer.prepared.lowered(measurer.first.schedule.fusions)
    return spaces_of(conditions.config, stages, conditions.dram)


def test_outputs_are_not_constant(measurer: Measurer) -> None:
    (out,) = GoldenModelReference(measurer.first).golden_io(0).outputs.values()
    assert len(np.unique(out)) > 6


def test_channel_blocks_are_exact_and_no_slower(measurer: Measurer, spaces: dict[str, LayerSpace]) -> None:
    first = measurer.baseline()
    name = list(spaces)[1]
    ways = channel_block_tilings(spaces[name])
    assert {way.schedule.depth for way in ways} >= {2, 3, 4}
    now = measurer.first.schedule
    schedules = [
        with_layer(now, name, spaces[name].with_context(way.schedule, now.layers[name])) for way in ways
    ]
    found = [each for each in measurer.measure(schedules) if isinstance(each, Measurement)]
    assert len(found) == len(ways) and all(each.valid for each in found)
    assert min(each.cycles for each in found) <= first.cycles


def test_pool_interleaves_with_the_convolution(measurer: Measurer, spaces: dict[str, LayerSpace]) -> None:
    first = measurer.baseline()
    (lowered,) = measurer.prepared.lowered(measurer.first.schedule.fusions)
    ((number, pair),) = pooled_pairs(lowered, list(spaces.values())).items()
    assert number == 1
    now = measurer.first.schedule
    schedules = [
        with_layer(with_layer(now, pair.first.layer.name, way.first), pair.second.layer.name, way.second)
        for way in pair.candidates()
    ]
    found = [each for each in measurer.measure(schedules) if isinstance(each, Measurement)]
    assert len(found) == len(schedules) > 2 and all(each.valid for each in found)
    assert min(each.cycles for each in found) <= first.cycles


def test_other_layers_have_no_channel_blocks(spaces: dict[str, LayerSpace]) -> None:
    pool = list(spaces)[2]
    assert channel_block_tilings(spaces[pool]) == []
