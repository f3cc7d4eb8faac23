"""Compilation uses the best known schedule of a network, and of layers that it shares with other networks."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

import compiler
from compiler.ir.graph import Graph
from compiler.options import UNLIMITED, CompileOptions
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import HardwareProfile, LayerCycles, Measurement
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.program_text import program_text
from compiler.runtime.stages import Origin, ProgramSource
from compiler.schedule.program_override import ProgramText, digest_of
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning_db.connection import MACROS, PROGRAMS
from compiler.tuning_db.database import TuningDatabase
from compiler.tuning_db.entries import BestKeys, Entry, best_keys_of, subgraph_of
from compiler.tuning_db.known_schedules import KnownSchedule, KnownSchedules, known_schedules
from compiler.tuning_db.macro_instructions import (
    MacroInstruction,
    MacroPart,
    Surroundings,
    group_of,
    use_of,
)
from compiler.tuning_db.session import DatabaseSession, executed
from hw.config import load_target
from hw.errors import InputError
from tests.support.graphs import Draft

N4 = load_target("n4")
#: Number of output channels of the layers that networks A and B share.
SHARED = (16, 20, 24)


def network(seed: int, first: int, last: int, depth: int = 8) -> Graph:
    """Return a network of dense layers whose middle layers have the shapes in `SHARED`."""
    draft = Draft(np.random.default_rng(seed))
    draft.count = 100 * seed
    x, size = draft.input((3, depth)), depth
    for out in (first, *SHARED, last):
        x, size = draft.node("dense", [x, draft.constant((out, size))], (3, out)), out
    draft.graph.finish([x.name])
    return draft.graph


def changed(schedule: LayerSchedule) -> LayerSchedule:
    """Return a legal schedule that differs from a layer's own."""
    return replace(schedule, prefetch=schedule.prefetch + 1)


def measurement(compiled: CompiledNetwork, cycles: int) -> Measurement:
    layers = tuple(LayerCycles((info.name,), cycles, {}) for info in compiled.infos)
    return Measurement(cycles * len(layers), layers, energy_uj=1.0, dram_bytes=1, exact=True, floor=0)


def store(url: str, graph: Graph, names: slice = slice(None), batch: int = 1) -> CompiledNetwork:
    """Store a schedule of a network in which some layers are changed, as a search does; return the network."""
    prepared = ModelCompiler(graph, N4, CompileOptions(rounding="reference", batch=batch))
    static = prepared.network()
    chosen = [info.name for info in static.infos][names]
    layers = static.schedule.layers | {name: changed(static.schedule.layers[name]) for name in chosen}
    schedule = replace(static.schedule, layers=layers)
    with TuningDatabase(url) as database:
        session = DatabaseSession(database, prepared, HardwareProfile(N4), "latency", "coordinate")
        result, baseline = measurement(static, 90), measurement(static, 100)
        assert session.put_best(schedule, result, result.cycles, prepared.network, baseline)
    return static


def from_database(compiled: CompiledNetwork) -> list[int]:
    """Return the indices of the layers whose schedules come from the database."""
    return [number for number, each in enumerate(compiled.sources) if each.source == "database"]


def outputs(compiled: CompiledNetwork, seed: int = 5) -> np.ndarray:
    x = np.random.default_rng(seed).integers(-128, 128, (3, 8), dtype=np.int8)
    (out,) = compiled(x).values()
    return out


def test_best_schedule_of_a_network_is_used(url):
    graph = network(1, 12, 4)
    static = store(url, graph, slice(1, 3))
    compiled = compiler.compile(graph, "n4", database=url)
    assert from_database(compiled) == [1, 2]
    assert {each.proposer for each in compiled.sources} == {None, "coordinate"}
    assert compiled.schedule.layers != static.schedule.layers
    np.testing.assert_array_equal(outputs(compiled), outputs(static))
    for other in (False, url):
        plain = compiler.compile(graph, "n4" if other is False else "n8", database=other)
        assert plain.sources == ()  # other machines do not use it


@pytest.mark.parametrize("option", ["reuse", "skip"])
def test_best_schedule_is_used_in_programs_with_guards(url, option):
    graph = network(1, 12, 4)
    options: dict[str, Any] = {"reuse": True} if option == "reuse" else {"skip": graph.inputs[0]}
    static = store(url, graph, slice(1, 3))
    compiled = compiler.compile(graph, "n4", database=url, **options)
    assert from_database(compiled) == [1, 2]
    prefetch = [compiled.schedule.layers[info.name].prefetch for info in static.infos]
    own = [static.schedule.layers[info.name].prefetch for info in static.infos]
    assert [new - old for new, old in zip(prefetch, own, strict=True)] == [0, 1, 1, 0, 0]
    assert all(len(code.parts[-1].layers) == len(static.infos) for code in compiled.codes)
    np.testing.assert_array_equal(outputs(compiled), outputs(static))


def test_each_batch_size_has_its_best_schedule(url):
    graph = network(1, 12, 4)
    static = store(url, graph, slice(1, 3), batch=2)
    known = compiler.compile(graph, "n4", batches=(1, 2), database=url)
    assert from_database(known) == [1, 2]
    found = [known.schedule.layers[info.name].prefetch for info in static.infos]
    own = [static.schedule.layers[info.name].prefetch for info in static.infos]
    assert [new - old for new, old in zip(found, own, strict=True)] == [0, 1, 1, 0, 0]
    x = np.random.default_rng(5).integers(-128, 128, (6, 8), dtype=np.int8)
    (result,), (wanted,) = known(x).values(), static(x).values()
    np.testing.assert_array_equal(result, wanted)
    assert compiler.compile(graph, "n4", batches=(1, 3), database=url).sources == ()


def test_environment_names_the_default_database(url, monkeypatch):
    graph = network(1, 12, 4)
    store(url, graph)
    monkeypatch.setenv("MLA_DB", "off")
    assert compiler.compile(graph, "n4").sources == ()
    monkeypatch.setenv("MLA_DB", url)
    assert compiler.compile(graph, "n4").sources
    monkeypatch.setenv("MLA_DB", "luck://x")
    assert compiler.compile(graph, "n4").sources == ()  # a warning, not an error
    with pytest.raises(InputError, match="unknown database type 'luck'"):
        compiler.compile(graph, "n4", database="luck://x")
    with pytest.raises(
        InputError, match="database must be a TuningDatabase, its URL or file, True or False, not 3"
    ):
        compiler.compile(graph, "n4", database=3)  # type: ignore[arg-type]


def test_layers_are_shared_with_other_networks(url):
    """Layers with other neighbours need a predicted gain of more than twice its expected error."""
    store(url, network(1, 12, 4))
    other = compiler.compile(network(2, 8, 6), "n4", database=False)
    key = best_keys_of(other.graph, other.rounding, HardwareProfile(N4), UNLIMITED, "latency").plain  # type: ignore[arg-type]
    assert other.graph is not None and TuningDatabase(url).best(key) is None
    known = known_schedules(TuningDatabase(url))
    assert known is not None

    def found(predict):
        return [
            [number for number, each in enumerate(one.sources) if each.source == "database"]
            for one in known.find(other, HardwareProfile(N4), UNLIMITED, predict)
        ]

    # The layers are: 8 to first, first to 16, 16 to 20, 20 to 24, 24 to last. 16 to 20 has other neighbours in B.
    calls = []
    assert found(lambda schedule: calls.append(schedule) or {"all": (0.0, 0.0)}) == []
    assert calls, "the layers at the ends of the shared part need a prediction"
    for error, expected in ((2.0, []), (0.1, [[2, 3]])):  # each of the two layers saves 3 cycles

        def predict(schedule: Schedule, error: float = error) -> dict[str, tuple[float, float]]:
            return {
                name: (100.0 - 3 * layer.prefetch, error + layer.prefetch / 1e6)
                for name, layer in schedule.layers.items()
            }

        assert found(predict) == expected
    compiled = compiler.compile(network(2, 8, 6), "n4", database=url)
    np.testing.assert_array_equal(outputs(compiled), outputs(other))


def test_layer_between_equal_neighbours_needs_no_prediction(url):
    store(url, network(1, 12, 4))
    other = compiler.compile(network(2, 12, 6), "n4", database=False)  # shares the first four layers
    known = known_schedules(TuningDatabase(url))
    assert known is not None
    (found,) = known.find(other, HardwareProfile(N4), UNLIMITED, lambda schedule: {"all": (0.0, 0.0)})
    assert [each.source == "database" for each in found.sources] == [True, True, True, False, False]
    compiled = compiler.compile(network(2, 12, 6), "n4", database=url)
    assert {0, 1, 2} <= set(from_database(compiled))
    np.testing.assert_array_equal(outputs(compiled), outputs(other))


def test_foreign_and_damaged_entries_are_not_used(url, tmp_path, caplog):
    graph = network(1, 12, 4)
    store(url, graph)
    with TuningDatabase(url) as database:
        database.export(tmp_path / "entries")
    elsewhere = f"sqlite:///{tmp_path / 'other.db'}"
    with TuningDatabase(elsewhere) as database:
        assert database.import_(tmp_path / "entries") == 6  # the profile and five layers
    assert compiler.compile(graph, "n4", database=elsewhere).sources == ()
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for table in (MACROS, PROGRAMS):
            for number, data in connection.execute(sa.select(table.c.id, table.c.data)).all():
                where = len(data) // 2
                bad = bytes(data[:where]) + bytes([data[where] ^ 1]) + bytes(data[where + 1 :])
                connection.execute(sa.update(table).where(table.c.id == number).values(data=bad))
    engine.dispose()
    assert compiler.compile(graph, "n4", database=url).sources == ()
    assert "is not used: it is damaged" in caplog.text


def test_schedule_that_does_not_compile_is_not_used(url, caplog):
    graph = network(1, 12, 4)
    static = compiler.compile(graph, "n4", database=False)
    assert static.graph is not None
    key = best_keys_of(static.graph, static.rounding, HardwareProfile(N4), UNLIMITED, "latency").plain
    info = static.infos[0]
    wrong = replace(static.schedule.layers[info.name], stream_channel_blocks=3)
    layers = static.schedule.layers | {info.name: wrong}
    entry = MacroInstruction(
        key=replace(key, subgraph=info.shape),
        parts=(MacroPart(shape=info.shape, schedule=wrong),),
        machine="",
        before="",
        after=static.infos[1].shape,
        context=Surroundings(static).context(0, 1, layers),
        network="a" * 64,
        cycles=1,
        static_cycles=2,
    )
    with TuningDatabase(url) as database:
        database.put_macros([entry])
    with caplog.at_level("INFO"):
        compiled = compiler.compile(graph, "n4", database=url)
    assert compiled.schedule == static.schedule and compiled.sources == ()
    assert "a schedule from the database is not used" in caplog.text


def test_schedule_that_does_not_compile_does_not_exclude_those_of_other_layers(url):
    """The network shares four layers, and the schedule of one of them does not compile."""
    store(url, network(1, 12, 4))
    graph = network(2, 12, 6)
    static = compiler.compile(graph, "n4", database=False)
    assert static.graph is not None
    info = static.infos[0]
    with TuningDatabase(url) as database:
        (entry,) = (each for each, _ in database.all_macros() if each.key.subgraph == info.shape)
        wrong = replace(static.schedule.layers[info.name], stream_channel_blocks=3)
        database.put_macros(
            [replace(entry, parts=(replace(entry.parts[0], schedule=wrong),), network="a" * 64, cycles=1)]
        )
    compiled = compiler.compile(graph, "n4", database=url)
    assert 2 in from_database(compiled)
    assert compiled.sources[0].source == "static" and compiled.sources[0].subgraph == info.shape
    np.testing.assert_array_equal(outputs(compiled), outputs(static))


def test_largest_part_of_a_schedule_that_compiles_is_found_by_halves():
    layer = LayerSchedule(rows=1)
    names = [f"layer{number}" for number in range(32)]
    static = Schedule((), dict.fromkeys(names, layer))
    sources = tuple(ProgramSource(name, "", "database") for name in names)
    known = KnownSchedule(replace(static, layers=dict.fromkeys(names, changed(layer))), sources)
    asked = []

    def compiles(schedule: Schedule) -> bool:
        asked.append(schedule)
        return all(schedule.layers[name] == layer for name in ("layer3", "layer20"))

    found = known.fitting(static, compiles)
    assert found is not None and len(asked) <= 25
    assert [each.layer for each in found.sources if each.source == "static"] == ["layer3", "layer20"]
    assert {name for name, each in found.schedule.layers.items() if each == layer} == {"layer3", "layer20"}
    assert known.fitting(static, lambda _schedule: True) is None
    assert known.fitting(static, lambda _schedule: False) is None


def test_entries_are_cached_until_the_file_changes(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path / 'known.db'}"
    graph = network(1, 12, 4)
    static = store(url, graph)
    assert static.graph is not None
    known = KnownSchedules(TuningDatabase(url), tmp_path / "known.db", max_networks=1)
    keys = [best_keys_of(static.graph, static.rounding, HardwareProfile(N4), UNLIMITED, "latency")]
    shapes = tuple(info.shape for info in static.infos)
    found = known.entries(keys, [], shapes)
    assert found.best is not None and len(found.macros) == len(shapes)
    with monkeypatch.context() as patch:
        patch.setattr(TuningDatabase, "best", lambda *_: pytest.fail("the database was read"))
        assert known.entries(keys, [], shapes) is found
    store(url, network(3, 8, 8))
    assert known.entries(keys, [], shapes) is not found
    other = [BestKeys(*(replace(key, options="b" * 64) for key in each)) for each in keys]
    assert known.entries(other, [], shapes).best is None  # evicts the first network
    assert known.entries(keys, [], shapes) is not found


def test_file_of_an_earlier_release_has_no_layers(tmp_path):
    graph, file = network(1, 12, 4), tmp_path / "old.db"
    url = f"sqlite:///{file}"
    store(url, graph)
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        MACROS.drop(connection)
    engine.dispose()
    compiled = compiler.compile(graph, "n4", database=file)
    assert from_database(compiled) == [0, 1, 2, 3, 4]  # the best program of the network is still found
    assert {(each.proposer, each.macro) for each in compiled.sources} == {("coordinate", None)}
    with TuningDatabase(file, read_only=True) as database:
        assert database.macros([]) == [] and database.export(tmp_path / "out") == 1


def test_merged_databases_start_a_search_with_the_best_of_all(tmp_path):
    """Three users search separately; after a merge each measures the best schedules of the others first."""
    graph = network(1, 12, 4)
    prepared = ModelCompiler(graph, N4, CompileOptions(rounding="reference"))
    static = prepared.network()
    names = [info.name for info in static.infos]
    schedules, urls = [], [f"sqlite:///{tmp_path / f'{user}.db'}" for user in range(3)]
    for user, url in enumerate(urls):
        layers = static.schedule.layers | {names[user]: changed(static.schedule.layers[names[user]])}
        schedules.append(replace(static.schedule, layers=layers))
        with TuningDatabase(url, secret=bytes([user]) * 32) as database:
            session = DatabaseSession(database, prepared, HardwareProfile(N4), "latency", "coordinate")
            session.put(schedules[user], measurement(static, 90 - user))
    for user in range(len(urls)):
        secret = bytes([user]) * 32
        merged = f"sqlite:///{tmp_path / f'merged{user}.db'}"
        with TuningDatabase(merged, secret=secret) as database:
            for other in urls:
                with TuningDatabase(other, read_only=True) as source:
                    # All have the same profile, which is trusted after the merge of one's own.
                    assert database.merge(source) == (2 if other in (urls[0], urls[user]) else 1)
                    assert database.merge(source) == 0
            session = DatabaseSession(database, prepared, HardwareProfile(N4), "latency", "coordinate")
            others = [schedule for owner, schedule in enumerate(schedules) if owner != user]
            assert session.transfer_candidates(static.schedule, 4) == others[::-1]  # fewest cycles first
            for owner, schedule in enumerate(schedules):
                assert (session.lookup(schedule) is not None) == (owner == user)  # only one's own are trusted
            assert session.best() is None


def test_texts_that_an_earlier_version_accepted_are_not_used(url):
    """A program with texts under the key of programs without them is ignored, and replaced by the next best one."""
    graph = network(1, 12, 4)
    prepared = ModelCompiler(graph, N4, CompileOptions(rounding="reference"))
    static = prepared.network()
    program = static.codes[0].programs[0]
    text = ProgramText(digest_of(program), program_text(program))
    with_text = replace(static.schedule, programs={program.name: text})
    result, baseline = measurement(static, 50), measurement(static, 100)
    with TuningDatabase(url) as database:
        session = DatabaseSession(database, prepared, HardwareProfile(N4), "latency", "edits")
        codes = tuple(static.codes)
        old = Entry(key=session.best_keys.plain, schedule=with_text, cost=1.0, result=result, codes=codes)
        assert database.put_best(old) and session.best() is None
        assert session.put_best(static.schedule, result, 2.0, prepared.network, baseline)
        best = session.best()
        assert best is not None and best.cost == 2.0 and best.schedule == static.schedule
        assert session.put_best(with_text, result, 1.5, prepared.network, baseline)  # accepted now
        best = session.best()
        assert best is not None and best.cost == 1.5 and best.schedule == with_text


def stored_macros(url: str) -> list[MacroInstruction]:
    with TuningDatabase(url) as database:
        return [macro for macro, _ in database.all_macros()]


def no_prediction(_: Schedule) -> dict[str, tuple[float, float]]:
    """Return predictions that are the same for all schedules."""
    return {"all": (1.0, 0.0)}


def used(url: str, other: CompiledNetwork) -> list[list[int]]:
    """Return the layers from the database in each known schedule of a network, if no gain is predicted."""
    known = known_schedules(TuningDatabase(url))
    assert known is not None
    found = known.find(other, HardwareProfile(N4), UNLIMITED, no_prediction)
    return [[number for number, each in enumerate(one.sources) if each.source == "database"] for one in found]


@pytest.mark.parametrize(
    ("layer", "field", "value", "left"),
    [
        (
            1,
            "on_chip",
            False,
            [0, 1],
        ),  # the input of layer 2 comes from DRAM, and is not a result on the chip
        (3, "same_program_as_previous", False, [0, 1]),
        (3, "interleave", True, [0, 1]),
        (3, "rows", 1, [0, 1, 2]),  # tilings of other layers are not part of the context
    ],
)
def test_layer_in_another_context_is_not_used_without_a_prediction(url, layer, field, value, left):
    """The network shares the first four layers with the tuned one, and one layer has another static schedule."""
    store(url, network(1, 12, 4))
    other = compiler.compile(network(2, 12, 6), "n4", database=False)
    assert used(url, other) == [[0, 1, 2]]
    name = other.infos[layer].name
    layers = other.schedule.layers | {name: replace(other.schedule.layers[name], **{field: value})}
    other = replace(other, schedule=replace(other.schedule, layers=layers))
    if layer < 3:  # the tuned schedule of the layer itself would restore the field
        with TuningDatabase(url) as database:
            chosen = other.infos[layer].shape
            database.drop_macros(lambda macro: macro.key.subgraph == chosen)
        left = [number for number in left if number != layer]
    assert used(url, other) == [left]


def test_layers_that_were_not_improved_are_not_learned(url):
    graph = network(1, 12, 4)
    prepared = ModelCompiler(graph, N4, CompileOptions(rounding="reference"))
    static = prepared.network()
    names = [info.name for info in static.infos]
    layers = static.schedule.layers | {name: changed(static.schedule.layers[name]) for name in names[:3]}
    baseline = measurement(static, 100)
    cycles = [90, 100, 110, 100, 100]  # the third layer loses, but not next to a gain
    each = tuple(LayerCycles((name,), count, {}) for name, count in zip(names, cycles, strict=True))
    result = replace(baseline, cycles=490, layers=each)
    with TuningDatabase(url) as database:
        session = DatabaseSession(database, prepared, HardwareProfile(N4), "latency", "coordinate")
        schedule = replace(static.schedule, layers=layers)
        assert session.put_best(schedule, result, 490, prepared.network, baseline)
    (macro,) = stored_macros(url)
    assert macro.layers == (names[0],) and macro.saved == 10
    assert from_database(compiler.compile(graph, "n4", database=url)) == [0, 1, 2]


@pytest.mark.parametrize("whole", [480, 520])
def test_layer_improved_in_a_trial_that_is_not_the_best_is_learned(url, whole):
    """Layer 2 gains 20 cycles beside unchanged layers; layers 0 and 4 lose what makes the trial slower or faster."""
    graph = network(1, 12, 4)
    prepared = ModelCompiler(graph, N4, CompileOptions(rounding="reference"))
    static = prepared.network()
    names = [info.name for info in static.infos]
    layers = static.schedule.layers | {names[2]: changed(static.schedule.layers[names[2]])}
    baseline = measurement(static, 100)
    more = (whole - 480) // 2
    trial = replace(
        together(static, *((1, count) for count in (100 + more, 100, 80, 100, 100 + more))), floor=0
    )
    with TuningDatabase(url) as database:
        session = DatabaseSession(database, prepared, HardwareProfile(N4), "latency", "coordinate")
        session.learn(
            replace(static.schedule, layers=layers), trial, baseline, prepared.network, lambda _: {}
        )
        assert not database.all_macros()
        session.store_learned()
    (macro,) = stored_macros(url)
    assert (macro.layers, macro.saved, macro.method) == ((names[2],), 20, "coordinate")
    other = compiler.compile(network(2, 12, 4), "n4", database=url)
    assert from_database(other) == [2]


def test_layers_improved_beside_changed_ones_are_learned_from_the_best_trial_only(url):
    """The effect of a change on the cycles of the layer beside it is not known."""
    graph = network(1, 12, 4)
    prepared = ModelCompiler(graph, N4, CompileOptions(rounding="reference"))
    static = prepared.network()
    names = [info.name for info in static.infos]
    layers = static.schedule.layers | {name: changed(static.schedule.layers[name]) for name in names[1:3]}
    schedule, baseline = replace(static.schedule, layers=layers), measurement(static, 100)
    trial = replace(together(static, *((1, count) for count in (100, 90, 100, 100, 100))), floor=0)
    with TuningDatabase(url) as database:
        session = DatabaseSession(database, prepared, HardwareProfile(N4), "latency", "coordinate")
        session.learn(schedule, trial, baseline, prepared.network, lambda _: {})
        session.store_learned()
        assert not database.all_macros()
        assert session.put_best(schedule, trial, trial.cycles, prepared.network, baseline)
        (macro,) = stored_macros(url)
        assert macro.layers == (names[1],) and macro.saved == 10
        session.withdraw(schedule)
        assert not stored_macros(url)


def test_macros_of_adjacent_layers_are_combined_only_if_they_were_measured_together(url):
    graph = network(1, 12, 4)
    prepared = ModelCompiler(graph, N4, CompileOptions(rounding="reference"))
    static = prepared.network()
    names = [info.name for info in static.infos]
    baseline = measurement(static, 100)
    with TuningDatabase(url) as database:
        session = DatabaseSession(database, prepared, HardwareProfile(N4), "latency", "coordinate")
        for number, saved in ((0, 10), (1, 30), (2, 20), (3, 5)):
            cycles = [100 - saved * (number == each) for each in range(5)]
            layers = static.schedule.layers | {names[number]: changed(static.schedule.layers[names[number]])}
            trial = replace(together(static, *((1, count) for count in cycles)), floor=0)
            session.learn(
                replace(static.schedule, layers=layers), trial, baseline, prepared.network, lambda _: {}
            )
        session.store_learned()
    assert len(stored_macros(url)) == 4
    other = compiler.compile(network(2, 12, 4), "n4", database=False)
    assert used(url, other) == [[1, 3]]  # the largest gain first


def test_macros_of_earlier_searches_are_kept_while_their_static_cycles_are_valid(url):
    graph = network(1, 12, 4)
    prepared = ModelCompiler(graph, N4, CompileOptions(rounding="reference"))
    static = prepared.network()
    names = [info.name for info in static.infos]

    def search(number: int, static_cycles: int) -> list[tuple[str, ...]]:
        """Learn one layer in a new session; return the layers of all stored macro-instructions."""
        layers = static.schedule.layers | {names[number]: changed(static.schedule.layers[names[number]])}
        cycles = [static_cycles - (number == each) for each in range(5)]
        trial = replace(together(static, *((1, count) for count in cycles)), floor=0)
        baseline = measurement(static, static_cycles)
        with TuningDatabase(url) as database:
            session = DatabaseSession(database, prepared, HardwareProfile(N4), "latency", "coordinate")
            session.learn(
                replace(static.schedule, layers=layers), trial, baseline, prepared.network, lambda _: {}
            )
            session.store_learned()
        return sorted(macro.layers for macro in stored_macros(url))

    assert search(0, 100) == [(names[0],)]
    assert search(2, 100) == sorted([(names[0],), (names[2],)])
    assert search(4, 99) == [(names[4],)]  # another static compiler


def test_gain_that_moved_to_the_next_layer_is_not_learned(url):
    """Layers 0 and 1 only exchange cycles; 3 and 4 gain together, and the small loss of 2 does not count."""
    graph = network(1, 12, 4)
    prepared = ModelCompiler(graph, N4, CompileOptions(rounding="reference"))
    static = prepared.network()
    names = [info.name for info in static.infos]
    layers = {name: changed(layer) for name, layer in static.schedule.layers.items()}
    baseline, result = (
        replace(together(static, *((1, count) for count in cycles)), floor=0)
        for cycles in ([100, 100, 100, 100, 100], [50, 151, 102, 60, 110])
    )
    with TuningDatabase(url) as database:
        session = DatabaseSession(database, prepared, HardwareProfile(N4), "latency", "coordinate")
        schedule = replace(static.schedule, layers=layers)
        assert session.put_best(schedule, result, result.cycles, prepared.network, baseline)
    (macro,) = stored_macros(url)
    assert macro.layers == tuple(names[3:]) and macro.saved == 30
    compiled = compiler.compile(graph, "n4", database=url)
    assert executed(compiled.sources, compiled.infos[3:4]) == [
        (compiled.infos[3].shape, macro.name),
        (use_of(macro.name), macro.name),
    ]


def together(compiled: CompiledNetwork, *groups: tuple[int, int]) -> Measurement:
    """Return a measurement in which runs of layers share a counter; each is given by its length and cycles."""
    names, out = [info.name for info in compiled.infos], []
    for length, cycles in groups:
        out.append(LayerCycles(tuple(names[:length]), cycles, {}))
        del names[:length]
    assert not names
    total = sum(cycles for _, cycles in groups)
    return Measurement(total, tuple(out), energy_uj=1.0, dram_bytes=1, exact=True, floor=0)


def store_group(url: str, graph: Graph) -> CompiledNetwork:
    """Store a best schedule whose middle layers share a counter; statically, the last two of these share one."""
    prepared = ModelCompiler(graph, N4, CompileOptions(rounding="reference"))
    static = prepared.network()
    layers = dict(static.schedule.layers)
    for info in static.infos[1:4]:
        layers[info.name] = replace(changed(layers[info.name]), own_counter_tag=info is static.infos[1])
    baseline, result = (
        together(static, (1, 100), (1, 0), (2, 200), (1, 100)),
        together(static, (1, 100), (3, 150), (1, 100)),
    )
    with TuningDatabase(url) as database:
        session = DatabaseSession(database, prepared, HardwareProfile(N4), "latency", "coordinate")
        schedule = replace(static.schedule, layers=layers)
        assert session.put_best(schedule, result, 350, prepared.network, baseline)
    return static


def test_layers_with_one_counter_are_one_macro_instruction(url):
    graph = network(1, 12, 4)
    static = store_group(url, graph)
    (macro,) = stored_macros(url)
    names = tuple(info.name for info in static.infos)
    assert macro.layers == names[1:4] and (macro.static_cycles, macro.cycles) == (200, 150)
    assert macro.key.subgraph == group_of([info.shape for info in static.infos[1:4]])
    compiled = compiler.compile(graph, "n4", database=url)
    assert [each.cycles for each in compiled.sources] == [None, 150, None, None, None]
    assert {each.macro for each in compiled.sources[1:4]} == {macro.name}
    assert all(each.group == names[1:4] for each in compiled.sources[1:4])


def test_group_of_layers_is_used_as_a_whole(url):
    store_group(url, network(1, 12, 4))
    whole = compiler.compile(network(2, 12, 4), "n4", database=False)
    assert used(url, whole) == [[1, 2, 3]]  # the same layers with other weights
    part = compiler.compile(network(2, 12, 6), "n4", database=False)
    assert used(url, part) == []  # the layer after the group differs
    compiled = compiler.compile(network(2, 12, 4), "n4", database=url)
    np.testing.assert_array_equal(outputs(compiled), outputs(whole))
    infos = compiled.infos
    assert [macro for _, macro in executed(compiled.sources, infos[:1])] == [""]
    ((shape, macro),) = executed(compiled.sources, infos[1:4])
    assert shape == group_of([info.shape for info in infos[1:4]]) and macro == stored_macros(url)[0].name
    ((shape, macro),) = executed(compiled.sources, infos[1:])  # counted with another layer
    assert shape == use_of(macro) and macro == stored_macros(url)[0].name


def test_measured_schedule_of_a_network_wins_over_combinations(tmp_path):
    """A merged database has measurements and macro-instructions of two users, but no programs."""
    graph = network(1, 12, 4)
    prepared = ModelCompiler(graph, N4, CompileOptions(rounding="reference"))
    static = prepared.network()
    urls = [f"sqlite:///{tmp_path / f'{user}.db'}" for user in range(2)]
    schedules = []
    for user, url in enumerate(urls):
        name = static.infos[user].name
        layers = static.schedule.layers | {name: changed(static.schedule.layers[name])}
        schedules.append(replace(static.schedule, layers=layers))
        with TuningDatabase(url) as database:
            session = DatabaseSession(database, prepared, HardwareProfile(N4), "latency", "coordinate")
            result, baseline = measurement(static, 90 - user), measurement(static, 100)
            session.put(static.schedule, baseline)
            session.put(schedules[user], result)
            assert session.put_best(schedules[user], result, result.cycles, prepared.network, baseline)
    merged = f"sqlite:///{tmp_path / 'merged.db'}"
    with TuningDatabase(merged) as database:
        for url in urls:
            with TuningDatabase(url, read_only=True) as source:
                database.merge(source)
    compiled = compiler.compile(graph, "n4", database=merged)
    assert compiled.schedule == schedules[1] and from_database(compiled) == [1]
    assert compiled.sources[1].proposer == "coordinate"
    with TuningDatabase(urls[0]) as database, TuningDatabase(urls[1], read_only=True) as source:
        database.merge(source)  # a program with more cycles is not used either
    assert compiler.compile(graph, "n4", database=urls[0]).schedule == schedules[1]
    with TuningDatabase(merged) as database:
        session = DatabaseSession(database, prepared, HardwareProfile(N4), "latency", "coordinate")
        session.withdraw(schedules[1])
        assert compiler.compile(graph, "n4", database=merged).schedule == schedules[0]
        session.put(static.schedule, measurement(static, 50))
    assert compiler.compile(graph, "n4", database=merged).schedule == static.schedule


def test_network_from_the_cache_uses_its_best_schedule(url, tmp_path, monkeypatch):
    """The layers' weights are tensors between other tensors, whose order is part of the network's key."""
    monkeypatch.setenv("MLA_CACHE", str(tmp_path / "cache"))
    graph = network(1, 12, 4)
    store(url, graph)
    for origin in (Origin.COMPILED, Origin.CACHE):
        static = compiler.compile(graph, "n4", database=False, cache=True)
        assert static.origin is origin and static.graph is not None
        assert subgraph_of(static.graph) == subgraph_of(
            ModelCompiler(graph, N4, CompileOptions(rounding="reference")).graph
        )
        assert from_database(compiler.compile(graph, "n4", database=url, cache=True)) == [0, 1, 2, 3, 4]
