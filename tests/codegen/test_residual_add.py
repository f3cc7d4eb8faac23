"""Tests of additions fused into either of two convolutions, and of layers that share counters with the previous
layer.
"""

from dataclasses import replace

import numpy as np
import pytest

from compiler.ir.graph import Graph
from compiler.options import CompileOptions
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import HardwareProfile, Measurement
from compiler.runtime.session import Session, dram_bytes
from compiler.tuning.epilogue_chains import movable_additions, move_addition
from compiler.tuning.measure.measurer import Measurer
from cosim.golden import GoldenDevice
from hw.config import load_target
from tests.support.graphs import Draft

OPTIONS = CompileOptions(rounding="reference")


def forked(seed: int) -> Draft:
    """Build a convolution of x, two convolutions of its result, their sum, and the addition of x to this sum."""
    draft = Draft(np.random.default_rng(seed))
    plain = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "groups": 1}
    shape = (1, 5, 6, 24)
    x = draft.input(shape)
    first = draft.node("conv2d", [x, draft.constant((24, 1, 1, 24))], shape, **plain)
    padded = {**plain, "pads": (1, 1, 1, 1)}
    a = draft.node("conv2d", [first, draft.constant((24, 3, 3, 24))], shape, **padded)
    b = draft.node("conv2d", [first, draft.constant((24, 1, 1, 24))], shape, **plain)
    total = draft.node("add", [a, b], shape)
    out = draft.node("add", [total, x], shape)
    draft.graph.finish([out.name])
    return draft


def answers(graph: Graph, fusions: tuple[tuple[str, ...], ...], inputs: dict[str, np.ndarray]) -> np.ndarray:
    prepared = ModelCompiler(graph, load_target("n8"), OPTIONS)
    schedule = replace(prepared.network().schedule, fusions=fusions)
    network = prepared.network(schedule)
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        (out,) = Session(device, network).run(inputs).values()
    return out


@pytest.mark.parametrize("seed", range(3))
def test_sum_is_fused_into_either_convolution(seed: int) -> None:
    draft = forked(seed)
    prepared = ModelCompiler(draft.graph, load_target("n8"), OPTIONS)
    (addition,) = movable_additions(prepared.graph, prepared.fusions)
    other = move_addition(prepared.graph, prepared.fusions, addition)
    mine, its = (
        next(names[0] for names in fusions if addition in names) for fusions in (prepared.fusions, other)
    )
    assert mine != its
    (lowered,) = prepared.lowered(other)
    order = [layer.name for layer in lowered.layers]
    assert order.index(its) > order.index(mine)
    inputs = draft.random_inputs()
    assert np.array_equal(answers(draft.graph, prepared.fusions, inputs), answers(draft.graph, other, inputs))
    back = move_addition(prepared.graph, other, addition)
    assert set(back) == set(prepared.fusions)


def test_other_sums_are_not_movable() -> None:
    draft = forked(0)
    prepared = ModelCompiler(draft.graph, load_target("n8"), OPTIONS)
    assert (
        len(movable_additions(prepared.graph, prepared.fusions)) == 1
    )  # the input of the second sum is not a convolution
    assert move_addition(prepared.graph, prepared.fusions, "nobody") == prepared.fusions


def test_layer_shares_counters_with_the_previous_one() -> None:
    with Measurer(forked(1).graph, HardwareProfile(load_target("n8")), OPTIONS) as measurer:
        first = measurer.baseline()
        schedule = measurer.first.schedule
        names = [entry.names for entry in first.layers]
        assert all(len(each) == 1 for each in names)
        last = names[-1][0]
        changed = replace(schedule.layers[last], own_counter_tag=False)
        (found,) = measurer.measure([replace(schedule, layers=schedule.layers | {last: changed})])
        assert isinstance(found, Measurement) and found.valid and found.cycles <= first.cycles
        assert found.layers[-1].names == (names[-2][0], last)
        assert sum(entry.cycles for entry in found.layers) == found.cycles
        middle = names[1][0]
        changed = replace(schedule.layers[middle], own_counter_tag=False)
        (found,) = measurer.measure([replace(schedule, layers=schedule.layers | {middle: changed})])
        assert isinstance(found, Measurement) and found.valid
        assert [len(entry.names) for entry in found.layers] == [2, *[1] * (len(names) - 2)]
