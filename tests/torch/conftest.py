"""Fixtures for tests of PyTorch models; warnings of PyTorch itself are not errors."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from compiler.llm.data.examples import CORPUS
from compiler.llm.data.held_out import is_validation
from compiler.llm.data.self_training import is_usable
from compiler.llm.data.trajectories import pack, read
from tests.cli.conftest import (
    complains,  # noqa: F401 - fixtures
    mla,  # noqa: F401 - fixtures
)

_HERE = Path(__file__).parent

#: Ignored tests: without the extra `torch` (`make setup EXTRAS=torch`), only tests of its error messages run.
collect_ignore_glob = [] if find_spec("torch") else ["test_[!m]*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Return a corpus of a few single-layer networks that are fast to measure."""
    trajectories = [each for each in read(CORPUS) if each.machine == "usual" and len(each.first) == 1]
    trajectories.sort(key=lambda trajectory: trajectory.steps[0].cycles)
    shown = [each for each in trajectories if is_usable(each)][100:106]
    pack([*shown, *[each for each in trajectories if is_validation(each)][:2]], tmp_path / "small.xz")
    return tmp_path / "small.xz"
