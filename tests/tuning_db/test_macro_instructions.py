"""Learned macro-instructions are found by subgraph, proved for the weights of each network, and never trusted."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
import sqlalchemy as sa

import compiler
from compiler.profile.measurement import HardwareProfile
from compiler.runtime.compiled import CompiledNetwork
from compiler.schedule.program_override import TemplateCommand, read_template, template_values
from compiler.tuning_db import macro_instructions
from compiler.tuning_db.connection import MACROS
from compiler.tuning_db.database import TuningDatabase
from compiler.tuning_db.macro_instructions import MacroInstruction
from compiler.tuning_db.session import DatabaseSession
from compiler.util.checks import DAMAGE
from tests.support.learned import FIRST, OTHER, edited, fill, learn, measurement, prepared
from tests.support.seeds import random_seed


@pytest.fixture
def tool() -> random.Random:
    """Return a random generator; its seed is printed, and `MLA_SEED` sets it."""
    return random.Random(random_seed())


def outputs(network: CompiledNetwork) -> np.ndarray:
    x = np.random.default_rng(3).integers(-128, 128, network.inputs[0].shape, dtype=np.int8)
    (out,) = network(x).values()
    return out


def compiled(database: object, seed: int = 2) -> CompiledNetwork:
    return compiler.compile(OTHER.graph(seed), "n4", database=database)  # type: ignore[arg-type]


def macros_of(network: CompiledNetwork) -> list[str]:
    return [each.macro for each in network.sources if each.macro]


def stored(url: str) -> list[MacroInstruction]:
    with TuningDatabase(url) as database:
        return [macro for macro, trusted in database.all_macros() if trusted]


def test_program_is_used_by_a_network_with_other_weights(url, tool):
    static, used = compiled(False), list[str]()
    for cycles in (90, 80, 70):  # random edits of both layers are not always possible beside the third layer
        fill(url, tool=tool, cycles=cycles)
        known = {each.name: each for each in stored(url)}
        assert any(each.templates for each in known.values())
        assert all(each.test_inputs == 0 and each.rules for each in known.values() if each.templates)
        network = compiled(url)
        if used := macros_of(network):
            break
    assert used and set(used) <= known.keys() and network.schedule.programs
    assert {each.proposer for each in network.sources} == {None, "edits"}
    np.testing.assert_array_equal(outputs(network), outputs(static))


def test_names_depend_on_program_and_subgraph_only(url, tool):
    """Equal programs that two networks learn have one name; other programs have other names."""
    schedules = {}
    with TuningDatabase(url) as database:
        for seed in (1, 5):
            made = prepared(FIRST, seed)
            rng = random.Random(7)
            schedules[seed] = edited(made, rng)
            learn(database, made, schedules[seed])
        names = [each.name for each, _ in database.all_macros()]
        assert len(names) == 2 * len(set(names))
        made = prepared(FIRST, 1)
        while (other := edited(made, tool)).programs == schedules[1].programs:
            continue
        learn(database, made, other, 80)
        assert {each.name for each, _ in database.all_macros()} > set(names)
    for macro in stored(url):
        assert macro_instructions.read(json.loads(json.dumps(macro_instructions.values(macro)))) == macro
        assert macro.name.startswith("conv2d") and macro.parts[0].operands[0].startswith("in i8 8x8x")


def test_wrong_program_is_refused(url):
    """A program that clips to other limits, although this user's code authenticates it, changes no output."""
    fill(url)
    static = outputs(compiled(False))
    macros = stored(url)
    wrong = []
    for each in macros:
        (part,) = each.parts
        if part.template is not None:
            first = part.template.commands
            commands = tuple(
                TemplateCommand(
                    command.source, tuple(sorted({**dict(command.changes), "clip_hi": -40}.items()))
                )
                for command in first
            )
            for bad in (commands, first[:-1]):
                template = replace(part.template, commands=bad)
                wrong.append(replace(each, parts=(replace(part, template=template),)))
    for each in wrong:
        with TuningDatabase(url) as database:
            database.put_macros([each])
        network = compiled(url)
        assert not network.schedule.programs
        np.testing.assert_array_equal(outputs(network), static)


def test_imported_macros_are_measured_before_use(url, tmp_path):
    fill(f"sqlite:///{tmp_path / 'theirs.db'}")
    file = tmp_path / "macros.jsonl"
    with TuningDatabase(f"sqlite:///{tmp_path / 'theirs.db'}") as database:
        count = database.export(file, lambda _: True)
    with TuningDatabase(url) as database:
        assert database.import_(file, only_macros=True) == count
        assert database.import_(file, only_macros=True) == 0
        assert compiled(url).sources == ()
        made = prepared(OTHER, 2)
        session = DatabaseSession(database, made, HardwareProfile(made.machine), "latency", "edits")
        starts = session.learned(made.network())
        assert starts and starts[0].templates
        network = compiler.compile(OTHER.graph(2), "n4", database=False)
        assert len(network.infos) == 3
        # the search measures the first of them, with success
        from compiler.tuning.edits.editable_programs import with_templates

        schedule, applied = with_templates(made, starts[0].schedule, starts[0].templates)
        assert applied
        learn(database, made, schedule)
        assert {trusted for _, trusted in database.all_macros()} == {True, False}
    assert macros_of(compiled(url))


def test_hostile_files_change_nothing(url, tmp_path, tool, caplog):
    """Randomly changed lines are left out, or are harmless entries of others."""
    fill(f"sqlite:///{tmp_path / 'theirs.db'}")
    file = tmp_path / "macros.jsonl"
    with TuningDatabase(f"sqlite:///{tmp_path / 'theirs.db'}") as database:
        database.export(file, lambda _: True)
    head, *lines = file.read_text().splitlines()
    junk = [None, -1, 1 << 70, 1e999, "x" * 5000, [], {}, "\ud800", True, [[[]]], "a" * 64]
    bad = [head, "{}", "[]", "{", json.dumps({"kind": "trial", "entry": {}})]
    for line in lines * 10:
        document = json.loads(line)
        place = document["entry"]
        while isinstance(place, (dict, list)) and place:
            keys = list(place) if isinstance(place, dict) else range(len(place))
            key = tool.choice(list(keys))
            if tool.random() < 0.4 or not isinstance(place[key], (dict, list)):
                place[key] = tool.choice(junk)
                break
            place = place[key]
        bad.append(json.dumps(document))
    file.write_text("\n".join(bad))
    with TuningDatabase(url) as database:
        database.import_(file, only_macros=True)
        assert not any(trusted for _, trusted in database.all_macros())
        made = prepared(OTHER, 2)
        session = DatabaseSession(database, made, HardwareProfile(made.machine), "latency", "edits")
        session.learned(made.network())
    assert "is left out" in caplog.text
    assert compiled(url).sources == ()


def test_damaged_entries_are_not_used(url):
    fill(url)
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for number, data in connection.execute(sa.select(MACROS.c.id, MACROS.c.data)).all():
            changed = bytes(data).replace(b'"cycles":', b'"cycles":0')
            connection.execute(sa.update(MACROS).where(MACROS.c.id == number).values(data=changed))
    engine.dispose()
    assert compiled(url).sources == ()


def test_oldest_macros_are_deleted(url, monkeypatch):
    monkeypatch.setattr(macro_instructions, "MAX_MACROS", 3)
    for seed in (1, 2, 3):
        fill(url, seed)
    kept = stored(url)
    assert len(kept) == 3
    with TuningDatabase(url) as database:
        assert database.drop_macros(lambda each: each.name == kept[0].name) >= 1
        assert kept[0].name not in {each.name for each, _ in database.all_macros()}


@pytest.mark.parametrize(
    "values",
    [
        None,
        {"form": "a" * 64},
        {"form": "x", "commands": [0]},
        {"form": "a" * 64, "commands": []},
        {"form": "a" * 64, "commands": [-1]},
        {"form": "a" * 64, "commands": [True]},
        {"form": "a" * 64, "commands": [1 << 20]},
        {"form": "a" * 64, "commands": [[0, {"len": 1 << 40}]]},
        {"form": "a" * 64, "commands": [[0, {"a b": 1}]]},
        {"form": "a" * 64, "commands": [[0, {f"f{n}": 1 for n in range(100)}]]},
        {"form": "a" * 64, "commands": [[0, []]]},
    ],
)
def test_invalid_templates(values):
    with pytest.raises(DAMAGE):
        read_template(values)
    good = {"form": "a" * 64, "commands": [0, [1, {"len": -3}]]}
    assert template_values(read_template(good)) == good


def test_measurement_names_no_tests_without_texts():
    made = prepared(FIRST, 1)
    assert measurement(made.network(), 5).test_inputs == 0
