"""What tests of PyTorch models share; its own warnings are no errors of this project's."""

from pathlib import Path

import pytest

from tests.cli.conftest import complains, mla  # noqa: F401 - fixtures

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.filterwarnings("ignore"))
