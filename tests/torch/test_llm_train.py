"""Training goes on from a model that there is."""

from pathlib import Path

import numpy as np

from compiler.llm.data.examples import CORPUS
from compiler.llm.data.journal import read
from compiler.llm.training.pretrain import default_plan, train
from tests.llm.lm_fixtures import ignorant


def test_a_first_step_is_a_small_one_from_where_it_starts(tmp_path: Path) -> None:
    trajectories = [trajectory for trajectory in read(CORPUS) if trajectory.machine == "usual"][:24]
    assert any(trajectory.index % 20 == 0 for trajectory in trajectories)
    start = ignorant()
    plan = default_plan(1, 0, shape=start.shape)
    found = train(trajectories, plan, tmp_path, start=start).model
    assert found.shape == start.shape
    most = 2 * plan.first.rate
    for name, array in start.weights.items():
        moved = np.abs(found.weights[name] - array).max()
        assert moved <= most and (moved > 0 or name.endswith("norm")), name
