"""Code generated for one schedule after others equals code generated from scratch, and unchanged layers keep theirs."""

import random
from itertools import islice

import numpy as np
import pytest

from compiler.cache.model_source import ModelSource
from compiler.options import DEFAULT_DRAM, CompileOptions
from compiler.pipeline import ModelCompiler
from compiler.runtime.compiled import CompiledNetwork
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning.layer_space import spaces_of
from hw.config import load_target
from hw.errors import InputError
from tests.support.trained_networks import model

SEED, SCHEDULES = 31, 8


def compiler_of(name: str) -> ModelCompiler:
    source = ModelSource(model(name))
    return ModelCompiler(source.graph, load_target("n16"), CompileOptions(rounding=source.rounding))


def walk(prepared: ModelCompiler, rng: random.Random, schedule: Schedule) -> list[Schedule]:
    """Return schedules, each of which differs from the one before in one layer."""
    spaces = spaces_of(prepared.config, prepared.lowered(schedule.fusions), DEFAULT_DRAM)
    out = []
    for name in islice((rng.choice(sorted(spaces)) for _ in iter(int, 1)), SCHEDULES):
        changed = spaces[name].change(rng, schedule.layers[name])
        schedule = Schedule(schedule.fusions, schedule.layers | {name: changed})
        out.append(schedule)
    return out


def same(one: CompiledNetwork, other: CompiledNetwork) -> bool:
    """Return True if programs, memory images and lower bounds of two networks are equal."""
    (a,), (b,) = one.codes, other.codes
    images = np.array_equal(a.image, b.image) and (a.memory, a.tags, a.peak) == (b.memory, b.tags, b.peak)
    return (
        images
        and one.floor == other.floor
        and [p.program.words for p in a.parts] == [p.program.words for p in b.parts]
    )


@pytest.mark.parametrize("name", ["kws_ref_model", "pretrainedResnet_quant"])
def test_code_does_not_depend_on_earlier_schedules(name: str) -> None:
    print(f"seed {SEED}")
    prepared, rng = compiler_of(name), random.Random(SEED)
    first = prepared.network()
    compiled = 0
    for schedule in walk(prepared, rng, first.schedule):
        try:
            network = prepared.network(schedule)
        except InputError:
            continue
        compiled += 1
        assert same(network, compiler_of(name).network(schedule))
    assert compiled > SCHEDULES // 2
    assert same(prepared.network(), first) and same(prepared.network(first.schedule), first)


def test_programs_of_distant_layers_remain() -> None:
    prepared = compiler_of("kws_ref_model")
    first = prepared.network()
    names = [layer.name for layer in first.layers]
    plain = first.schedule.layers[names[4]]
    changed = Schedule(
        first.schedule.fusions,
        first.schedule.layers | {names[4]: other_tiling(prepared, first, names[4])},
    )
    assert changed.layers[names[4]] != plain
    network = prepared.network(changed)
    before, after = ([part.program.words for part in each.codes[0].parts] for each in (first, network))
    assert sum(words not in before for words in after) <= 2 < len(after)


def other_tiling(prepared: ModelCompiler, network: CompiledNetwork, name: str) -> LayerSchedule:
    """Return another tiling of a layer."""
    space = spaces_of(prepared.config, prepared.lowered(network.schedule.fusions), DEFAULT_DRAM)[name]
    now = network.schedule.layers[name]
    return next(each for tiling in space.tilings if (each := space.with_context(tiling.schedule, now)) != now)
