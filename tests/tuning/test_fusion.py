"""Tests of the fusion engine: fusion opportunities and reasons, exactness of options, predictions, and choices."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import compiler
from compiler.cost.learned_model import CycleModel, find_model
from compiler.initial_schedule.initial import initial_schedule
from compiler.options import CompileOptions
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import HardwareProfile
from compiler.schedule.schedule import Schedule
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from compiler.tuning.epilogue_chains import retile
from compiler.tuning.fusion_engine import FusionEngine, FusionKind, FusionOpportunity, FusionOption
from compiler.tuning.network_cost_model import NetworkCostModel, NetworkPrediction
from hw.config import load_target
from hw.errors import InputError
from tests.support.graphs import Draft, attention

N16 = HardwareProfile(load_target("n16"))


def engine_of(point: CalibrationNetwork, model: CycleModel | None = None) -> tuple[FusionEngine, Schedule]:
    prepared = ModelCompiler(point.graph(7), N16.config, CompileOptions(rounding="reference"))
    return FusionEngine(prepared, N16, model or find_model(N16)), prepared.network().schedule


def outputs(prepared: ModelCompiler, schedule: Schedule) -> dict[str, Any]:
    network = prepared.network(schedule)
    rng = np.random.default_rng(3)
    inputs = {each.name: rng.integers(-128, 128, each.shape).astype(np.int8) for each in network.inputs}
    return network(**inputs)


CHAINS = {
    "chain": CalibrationNetwork(
        (6, 6, 16), (CalibrationOp("conv", 32, 3), CalibrationOp("relu"), CalibrationOp("residual"))
    ),
    "planes": CalibrationNetwork(
        (12, 12, 16), (CalibrationOp("conv", 64), CalibrationOp("depthwise", 0, 3), CalibrationOp("conv", 16))
    ),
    "residual": CalibrationNetwork(
        (8, 8, 16),
        (
            CalibrationOp("conv", 16, 3),
            CalibrationOp("relu"),
            CalibrationOp("conv", 16, 3),
            CalibrationOp("residual"),
        ),
    ),
    "pool": CalibrationNetwork(
        (8, 8, 20),
        (CalibrationOp("conv", 24, 3), CalibrationOp("max_pool", 0, 2, 2), CalibrationOp("dense", 10)),
    ),
}


def site(
    sites: list[FusionOpportunity], kind: FusionKind, number: int = 0, **values: Any
) -> FusionOpportunity:
    found = [each for each in sites if each.kind is kind]
    return [each for each in found if all(getattr(each, k) == v for k, v in values.items())][number]


def test_opportunities_have_a_status_and_a_reason_for_rejection() -> None:
    engine, schedule = engine_of(CHAINS["planes"])
    sites = engine.opportunities(schedule)
    assert {each.kind for each in sites} == {
        FusionKind.CHAIN,
        FusionKind.ON_CHIP,
        FusionKind.CHANNEL_BLOCKS,
        FusionKind.INTERLEAVE,
        FusionKind.SAME_PROGRAM,
    }
    assert site(sites, FusionKind.ON_CHIP).applied and site(sites, FusionKind.ON_CHIP).bytes == 12 * 12 * 64
    assert (
        site(sites, FusionKind.CHANNEL_BLOCKS).possible and not site(sites, FusionKind.CHANNEL_BLOCKS).applied
    )
    assert (
        site(sites, FusionKind.CHANNEL_BLOCKS, 1).reason
        == "the first layer is not a convolution with one group and batch size 1"
    )
    assert site(sites, FusionKind.CHAIN).reason == "depthwise_conv2d cannot be part of an epilogue"
    engine, schedule = engine_of(CHAINS["residual"])
    sites = engine.opportunities(schedule)
    assert [each.layers for each in sites if each.kind is FusionKind.CHAIN and each.applied]
    engine, schedule = engine_of(CHAINS["pool"])
    assert "max_pool2d cannot be part of an epilogue" in {
        each.reason for each in engine.opportunities(schedule)
    }


@pytest.mark.parametrize("name", CHAINS)
def test_options_are_exact(name: str) -> None:
    engine, schedule = engine_of(CHAINS[name])
    options = engine.options(schedule, engine.opportunities(schedule))
    expected = outputs(engine.prepared, schedule)
    for schedules in (
        *(option.schedule for option in options),
        engine.unfused(),
        engine.fixed_point(schedule),
    ):
        found = outputs(engine.prepared, schedules)
        assert all(np.array_equal(found[key], expected[key]) for key in expected)
    kinds = {option.opportunity.kind for option in options}
    between = {FusionKind.ON_CHIP, FusionKind.INTERLEAVE, FusionKind.SAME_PROGRAM}
    assert kinds & between == (set() if name == "chain" else between)
    assert (FusionKind.CHANNEL_BLOCKS in kinds) == (name == "planes")
    gains = [option.gain for option in options]
    assert gains == sorted(gains, reverse=True)
    assert all(option.prediction.cycles > 0 and option.prediction.error >= 0 for option in options)


def test_opportunities_of_few_cycles_are_left_out_of_large_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, schedule = engine_of(CHAINS["planes"])
    sites = engine.opportunities(schedule)
    every = engine.options(schedule, sites)
    monkeypatch.setattr("compiler.tuning.fusion_engine._MAX_PREDICTED", len(schedule.layers))  # one site
    few = engine.options(schedule, sites)
    predicted = engine.cost_model.predict_layers(schedule)

    def cycles(option: FusionOption) -> float:
        return sum(predicted[name].cycles for name in option.opportunity.layers)

    assert 0 < len(few) < len(every)
    assert {cycles(option) for option in few} == {max(map(cycles, every))}
    assert {option.schedule.to_json() for option in few} < {option.schedule.to_json() for option in every}


def test_chains_are_split_and_merged() -> None:
    engine, schedule = engine_of(CHAINS["chain"])
    sites = engine.opportunities(schedule)
    splits = engine.options(schedule, [site(sites, FusionKind.CHAIN, applied=True)])
    assert len(splits) == 2 and all(option.gain < 0 for option in splits)
    apart = engine.unfused()
    assert not apart.fusions and len(apart.layers) == 3
    joins = engine.options(
        apart, [each for each in engine.opportunities(apart) if each.kind is FusionKind.CHAIN]
    )
    assert joins and joins[0].gain > 0 and len(joins[0].schedule.layers) == 2
    again = retile(engine.prepared, N16, apart, schedule.fusions)
    assert again.fusions == schedule.fusions and again.layers.keys() == schedule.layers.keys()


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("clip", "add"), "cannot be fused with clip"),
        (("conv2d", "add"), "is not the only reader of 'conv2d"),
        (("conv2d", "clip", "max_pool2d"), "an epilogue cannot execute max_pool2d"),
        (("max_pool2d", "conv2d"), "no operators can be fused into max_pool2d"),
    ],
)
def test_invalid_chains_are_rejected(names: tuple[str, ...], words: str) -> None:
    """An operator that an epilogue cannot include causes an error and is not silently dropped."""
    ops = (
        CalibrationOp("conv", 32, 3),
        CalibrationOp("relu"),
        *([CalibrationOp("max_pool", 0, 2, 2), CalibrationOp("conv", 8)] if "max_pool2d" in names else ()),
    )
    engine, schedule = engine_of(
        CalibrationNetwork((6, 6, 16), (*ops, CalibrationOp("residual")) if "add" in names else ops)
    )
    nodes = {node.op: node.name for node in reversed(list(engine.prepared.graph))}
    if names[0] == "max_pool2d":
        nodes["conv2d"] = [node.name for node in engine.prepared.graph if node.op == "conv2d"][-1]
    with pytest.raises(InputError, match=words):
        engine.prepared.network(replace(schedule, fusions=(tuple(nodes[op] for op in names),)))


def test_network_prediction_is_the_sum_of_its_layers() -> None:
    engine, schedule = engine_of(CHAINS["planes"])
    layers = engine.cost_model.predict_layers(schedule)
    whole = engine.cost_model.predict(schedule)
    assert whole.cycles == pytest.approx(sum(each.cycles for each in layers.values()))
    assert 0 < whole.error < sum(each.error for each in layers.values())
    again = NetworkCostModel(engine.prepared, N16, find_model(N16)).predict(schedule)  # without cached stages
    assert again == whole
    option = next(
        o
        for o in engine.options(schedule, engine.opportunities(schedule))
        if o.opportunity.kind is FusionKind.CHANNEL_BLOCKS
    )
    handed = engine.cost_model.predict_layers(option.schedule)
    first, second = option.opportunity.layers
    assert handed[second].cycles == 0 < handed[first].cycles


def test_small_gains_are_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, schedule = engine_of(CHAINS["pool"])
    options = engine.options(schedule, engine.opportunities(schedule))
    now = engine.cost_model.predict(schedule).cycles
    for part, confidence, chosen in ((0.0005, 0.0, False), (0.002, 0.0, True), (0.002, 1.0, False)):
        option = replace(options[0], gain=part * now, prediction=replace_error(options[0], part * now))
        rounds = iter([[option], []])
        monkeypatch.setattr(engine, "options", lambda *_, rounds=rounds: next(rounds))
        assert engine.fixed_point(schedule, confidence) == (option.schedule if chosen else schedule)


@pytest.mark.parametrize("simulates", [True, False])
def test_shortlist_starts_with_different_gains(monkeypatch: pytest.MonkeyPatch, simulates: bool) -> None:
    monkeypatch.setattr(NetworkCostModel, "simulates", simulates)
    engine, schedule = engine_of(CHAINS["residual"])
    options = engine.options(schedule, engine.opportunities(schedule))
    assert any(option.programs is not None for option in options) == simulates
    major = [option for option in options if option.opportunity.kind is not FusionKind.SAME_PROGRAM]
    first, second, third = engine.shortlist(options)
    assert first.gain == max(option.gain for option in major if option.gain or not simulates)
    if simulates:
        assert first.gain > second.gain > third.gain
    everything = engine.shortlist(options, len(options) + 1)
    assert len(everything) == len(options) and all(option in everything for option in options)
    last = [option.opportunity.kind is FusionKind.SAME_PROGRAM for option in everything]
    assert last == sorted(last)


def replace_error(option: FusionOption, error: float) -> NetworkPrediction:
    return option.prediction._replace(error=error)


@pytest.mark.parametrize("name", CHAINS)
def test_fixed_point_is_predicted_to_be_fastest_and_is_reproducible(name: str) -> None:
    engine, schedule = engine_of(CHAINS[name])
    final = engine.fixed_point(schedule)
    before, after = (engine.predict(each).cycles for each in (schedule, final))
    assert after <= before and engine.fixed_point(final) == final
    options = engine.options(final, engine.opportunities(final))
    assert all(option.gain <= 0.001 * after for option in options if option.programs is not None)
    assert engine_of(CHAINS[name])[0].fixed_point(schedule) == final
    frozen = engine.fixed_point(schedule, layers=[])
    assert frozen == schedule


def test_pool_overlaps_the_convolution_if_both_are_interleaved() -> None:
    point = CalibrationNetwork(
        (16, 16, 63), (CalibrationOp("conv", 64, 1), CalibrationOp("max_pool", 0, 2, 2))
    )
    engine, schedule = engine_of(point)
    first, second = schedule.layers
    apart = engine.cost_model.predict_layers(schedule)
    layers = {name: replace(each, interleave=True, rows=2) for name, each in schedule.layers.items()}
    together = engine.cost_model.predict_layers(replace(schedule, layers=layers))
    assert together[second].cycles < apart[second].cycles
    assert together[second].error > 0 and first in together


def test_disjoint_options_are_combined() -> None:
    engine, schedule = engine_of(CHAINS["residual"])
    options = [
        replace(option, gain=1.0) for option in engine.options(schedule, engine.opportunities(schedule))
    ]
    whole = engine.combine(schedule, [o for o in options if o.opportunity.kind is not FusionKind.CHAIN])
    assert engine.combine(schedule, [replace(options[0], gain=-1.0)]) is None
    if whole is not None:
        assert whole.fusions == schedule.fusions and whole.layers != schedule.layers


def test_compiler_uses_the_fixed_point_if_gains_exceed_their_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = CalibrationNetwork((14, 14, 16), (CalibrationOp("add"), CalibrationOp("conv", 32, 3))).graph(7)
    options: dict[str, Any] = {"target": N16.config, "rounding": "reference", "database": False}
    static = compiler.compile(graph, **options)
    monkeypatch.setattr("compiler.tuning.fusion_engine.CONFIDENCE", 0.0)
    fused = compiler.compile(graph, fuse=True, **options)
    assert fused.schedule != static.schedule
    prepared = ModelCompiler(graph, N16.config, CompileOptions(rounding="reference"))
    costs = FusionEngine(prepared, N16, find_model(N16))
    assert costs.predict(fused.schedule).cycles < costs.predict(static.schedule).cycles
    rng = np.random.default_rng(5)
    inputs = {each.name: rng.integers(-128, 128, each.shape).astype(np.int8) for each in static.inputs}
    assert all(np.array_equal(value, fused(**inputs)[name]) for name, value in static(**inputs).items())
    monkeypatch.setattr("compiler.tuning.fusion_engine.CONFIDENCE", 100.0)
    assert compiler.compile(graph, fuse=True, **options).schedule == static.schedule


def test_attention_streams_blocks_of_rows() -> None:
    """From any other schedule, the engine finds that scores need not be stored as a whole, with the same outputs."""
    draft = Draft(np.random.default_rng(1))
    graph = draft.graph.finish([attention(draft, 1, 300, 300, 32).name])
    prepared = ModelCompiler(graph, N16.config, CompileOptions(rounding="reference"))
    engine = FusionEngine(prepared, N16, find_model(N16))
    (stage,) = prepared.lowered(prepared.fusions)
    static = prepared.network().schedule
    whole = initial_schedule(N16.config, stage, prepared.fusions, streams=False)
    streams = [each.stream_row_blocks > 0 for each in static.layers.values()]
    assert streams == [True, True, False]
    assert not any(each.stream_row_blocks for each in whole.layers.values())
    now, least = engine.predict(whole).cycles, engine.predict(static).cycles
    assert least < 0.95 * now
    (found,) = [each for each in engine.opportunities(whole) if each.kind is FusionKind.ROW_BLOCKS]
    assert found.possible and not found.applied and found.layers == tuple(whole.layers)
    best = engine.options(whole, [found])[0]
    assert abs(best.prediction.cycles - least) < 0.02 * least and best.gain > 0.05 * now
    wanted, made = outputs(prepared, whole), outputs(prepared, best.schedule)
    assert all(np.array_equal(made[name], wanted[name]) for name in wanted)
    (used,) = [each for each in engine.opportunities(static) if each.kind is FusionKind.ROW_BLOCKS]
    assert used.applied
    apart = [option for option in engine.options(static, [used]) if option.description == "whole tensors"]
    assert len(apart) == 1 and apart[0].gain < 0
    assert engine.fixed_point(whole).layers[found.layers[0]].stream_row_blocks
