"""Measurements of the corpus are repeated for the current machine."""

from dataclasses import replace

import pytest

from compiler.llm.data.collect import measure, measure_again
from compiler.llm.data.trajectories import Trajectory, changed_fields
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp

POINT = CalibrationNetwork((6, 6, 16), (CalibrationOp("conv", 32, 3),))


@pytest.fixture(scope="module")
def walk(devices) -> Trajectory:
    """Return a measured trajectory of a small network."""
    found = next(each for index in range(20) if (each := measure(devices, "usual", index, 5)) is not None)
    assert len(found.steps) > 3
    return found


def test_known_schedules_are_measured_again(devices, walk):
    outdated = replace(
        walk, steps=[replace(step, cycles=2 * step.cycles) for step in walk.steps], edited=None
    )
    again = measure_again(devices, outdated, 3)
    assert again is not None and again.edited is not None and again.first == walk.first
    cycles = [step.cycles for step in again.steps]
    for number, step in enumerate(walk.steps):
        assert again.schedules(number) == walk.schedules(number) and cycles[number] == step.cycles
    assert len(cycles) > len(walk.steps)  # new schedules follow


def test_a_trajectory_with_current_cycles_is_unchanged(devices, walk):
    assert measure_again(devices, walk, 3) is walk


def test_the_first_step_is_the_current_static_schedule(devices, trajectory):
    other = {"rows": 1 if trajectory.first[0].get("rows") != 1 else 2}
    outdated = replace(trajectory, first=[trajectory.first[0] | other])
    again = measure_again(devices, outdated, 3)
    assert again is not None and again.first == trajectory.first
    assert again.steps[0] == trajectory.steps[0]
    assert again.steps[1].base == 0 and again.schedules(1) == outdated.schedules(0)
    assert again.steps[1].changes == changed_fields(outdated.schedules(0)[0], trajectory.schedules(0)[0])


def test_schedules_of_other_layers_are_left_out(devices, trajectory):
    outdated = replace(trajectory, first=[*trajectory.first, {}])
    again = measure_again(devices, outdated, 3)
    assert again is not None and again.first == trajectory.first
    assert all(len(again.schedules(number)) == 1 for number in range(len(again.steps)))
