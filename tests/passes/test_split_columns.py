"""Convolutions and pools whose rows do not fit are split into strips of columns, and outputs equal LiteRT's."""

from pathlib import Path

import numpy as np
import pytest

from compiler.api import compile
from compiler.options import MemoryLimits
from compiler.passes.split_columns import split_columns
from hw.config import load_target
from tests.support import tflite_cases as cases
from tests.support.tflite_models import Draft, check, read

CASES = {
    "convolution": cases.convolution,
    "depthwise": cases.depthwise,
    "average_pool": cases.pool("AVERAGE_POOL_2D"),
    "max_pool": cases.pool("MAX_POOL_2D"),
}
SEEDS = range(3)


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the cases' images between 700 and 3,000 columns wide."""

    def shape(draft: Draft, _rank: int, _most: int = 7) -> tuple[int, ...]:
        columns = int(draft.rng.integers(700, 3000))
        return (1, int(draft.rng.integers(1, 6)), columns, int(draft.rng.integers(1, 20)))

    monkeypatch.setattr(cases, "shape_of", shape)


@pytest.mark.parametrize("rounding", ["reference", "xnnpack"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("wide")
def test_wide_layers_equal_litert(name: str, rounding: str, tmp_path: Path) -> None:
    split = 0
    for seed in SEEDS:
        print(f"seed {seed}")
        draft = Draft(np.random.default_rng(seed), "int8")
        CASES[name](draft)
        network = check(draft, tmp_path, rounding)
        assert not network.host
        split += any(":columns" in info.name for info in network.infos)
    assert split or name not in ("convolution", "depthwise")


@pytest.mark.parametrize("name", ["average_pool", "max_pool"])
def test_wide_pools_are_split_and_leave_room_for_each_strip(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strips that stayed in the scratchpad would leave too little memory for the pools of other strips."""
    monkeypatch.setattr(cases, "shape_of", lambda _draft, _rank, _most=7: (1, 4, 9000, 16))
    for seed in SEEDS:
        print(f"seed {seed}")
        draft = Draft(np.random.default_rng(seed), "int8")
        CASES[name](draft)
        network = check(draft, tmp_path, "reference")
        assert not network.host
        assert any(":columns" in info.name for info in network.infos)


def test_nodes_that_fit_are_not_split(tmp_path: Path) -> None:
    draft = Draft(np.random.default_rng(1), "int8")
    cases.convolution(draft)
    graph = read(draft, tmp_path)
    assert split_columns(graph, load_target("n4"), lambda _graph: pytest.fail("not a candidate")) is graph


@pytest.mark.usefixtures("wide")
def test_strips_become_narrower_until_they_fit(tmp_path: Path) -> None:
    draft = Draft(np.random.default_rng(2), "int8")
    cases.convolution(draft)
    graph = read(draft, tmp_path)
    (node,) = [node for node in graph if node.op == "conv2d"]
    columns = graph.out(node).shape[2]

    def fits(alone) -> bool:
        (only,) = alone
        return alone.out(only).shape[2] <= 90

    made = split_columns(graph, load_target("n4"), fits)
    widths = [made.out(each).shape[2] for each in made if each.op == "conv2d"]
    assert sum(widths) == columns
    assert 45 < max(widths) <= 90
    assert split_columns(graph, load_target("n4"), lambda _graph: False) is graph


@pytest.mark.usefixtures("wide")
def test_memory_limits_apply(tmp_path: Path) -> None:
    draft = Draft(np.random.default_rng(4), "int8")
    cases.convolution(draft)
    path = tmp_path / "model.tflite"
    path.write_bytes(draft.file())
    inputs = [draft.values(name) for name in draft.inputs]
    plain = compile(path, "n8", cache=False)
    small = compile(path, "n8", limits=MemoryLimits(acc_bytes=1 << 13), cache=False)
    assert len(small.infos) > len(plain.infos)
    for name, values in plain(*inputs).items():
        np.testing.assert_array_equal(values, small(*inputs)[name])
