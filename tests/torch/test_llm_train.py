"""Test of training that continues from an existing model."""

from pathlib import Path

import numpy as np

from compiler.llm.data.examples import CORPUS
from compiler.llm.data.trajectories import read
from compiler.llm.training.pretrain import default_plan, train
from tests.llm.lm_fixtures import random_model


def test_first_step_stays_close_to_the_given_model(tmp_path: Path) -> None:
    trajectories = [trajectory for trajectory in read(CORPUS) if trajectory.machine == "usual"][:24]
    assert any(trajectory.index % 20 == 0 for trajectory in trajectories)
    start = random_model()
    plan = default_plan(1, 0, shape=start.shape)
    found = train(trajectories, plan, tmp_path, start=start).model
    assert found.shape == start.shape
    most = 2 * plan.first.rate
    for name, array in start.weights.items():
        moved = np.abs(found.weights[name] - array).max()
        assert moved <= most and (moved > 0 or name.endswith("norm")), name
