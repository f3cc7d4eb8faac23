"""Tests of the best known schedules of measured layers, and of their retrieval by similarity."""

from dataclasses import replace
from pathlib import Path

import pytest

from compiler.llm.data.examples import CORPUS, comparable_steps, examples, known_layers
from compiler.llm.data.held_out import MACHINES, is_held_out
from compiler.llm.data.trajectories import Trajectory, TrajectoryStep, read
from compiler.llm.generate.known_layers import KnownLayers, read_known_layers, write_known_layers
from compiler.llm.tokens.layer_prompt import BEST, KNOWN, PromptSubject
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from hw.errors import InputError
from hw.isa.counters import CAUSES


def _trajectory(index: int, channels: int, costs: tuple[int, ...] = (900, 800, 1000)) -> Trajectory:
    """Return measurements of a dense layer: the first schedule, one with 2 rows, and one with 3 rows."""
    point = CalibrationNetwork((4, 1, channels), (CalibrationOp("dense", 32),))
    where = [costs[0]] + [0] * (len(CAUSES) - 1)
    steps = [
        TrajectoryStep(
            number - 1 if number < 2 else 0, 0 if number else -1, changes, cost, {0: cost}, {0: where}
        )
        for number, (changes, cost) in enumerate(zip(({}, {"rows": 2}, {"rows": 3}), costs, strict=True))
    ]
    return Trajectory("usual", index, point, [{"rows": 4}], steps)


@pytest.fixture(scope="module")
def known() -> KnownLayers:
    return KnownLayers(
        list(known_layers([_trajectory(1, 64), _trajectory(2, 300), _trajectory(3, 320, (700, 800, 600))]))
    )


def _subject(channels: int) -> PromptSubject:
    found = next(examples(_trajectory(9, channels)))
    return found.subject


def test_best_schedules_are_kept(known: KnownLayers) -> None:
    assert [layer.schedules for layer in known.layers] == [[{"rows": 2}, {"rows": 4}]] * 2 + [
        [{"rows": 3}, {"rows": 4}]
    ]
    assert {layer.word for layer in known.layers} == {"conv"}


@pytest.mark.parametrize(("channels", "rows"), [(60, 2), (310, 3), (330, 3)])
def test_nearest_layers_come_first(known: KnownLayers, channels: int, rows: int) -> None:
    subject = replace(_subject(channels), schedule=replace(_subject(channels).schedule, prefetch=1))
    first, *_ = found = known.nearest(subject, 3)
    assert first.rows == rows and len(set(found)) == len(found) <= 3
    assert first.prefetch == 1  # concerns neighboring layers
    tokens = known.with_known(subject, 2).tokens(BEST)
    assert tokens.count(KNOWN) == 2 and KNOWN not in known.with_known(subject, 0).tokens(BEST)


def test_own_network_is_left_out(known: KnownLayers) -> None:
    subject = _subject(320)
    assert known.nearest(subject, 1)[0].rows == 3
    assert known.nearest(subject, 1, without="usual 3")[0].rows == 2


def test_other_kinds_have_no_known_schedules(known: KnownLayers) -> None:
    assert not KnownLayers([replace(layer, word="pool") for layer in known.layers]).nearest(_subject(64), 3)
    assert not KnownLayers([]).nearest(_subject(64), 3)


def test_file_round_trip(known: KnownLayers, tmp_path: Path) -> None:
    write_known_layers(known.layers, tmp_path / "a.xz")
    assert read_known_layers(tmp_path / "a.xz").layers == known.layers
    (tmp_path / "b.xz").write_bytes(b"x")
    with pytest.raises(InputError, match="known layers"):
        read_known_layers(tmp_path / "b.xz")


def test_included_file_has_no_held_out_layers() -> None:
    names = {layer.network.rpartition(" ")[0] for layer in read_known_layers().layers}
    assert names <= MACHINES.keys() and len(read_known_layers().layers) > 1000
    assert not any(is_held_out(trajectory.point) for trajectory in read(CORPUS))


def test_all_schedules_of_a_layer_are_compared() -> None:
    trajectory = _trajectory(1, 64)
    assert list(comparable_steps(trajectory)) == [(0, [0, 1, 2])]
    found = {(round(each.ratio, 3), each.best) for each in examples(trajectory)}
    assert (round(800 / 1000, 3), True) in found and (round(1000 / 800, 3), False) in found
    prompts = [each.prompt() for _ in range(4) for each in examples(trajectory, 2)]
    assert {prompt.count(KNOWN) for prompt in prompts} == {0, 1, 2}
