"""Options of the whole suite."""

import pytest

from tests.support import coverage_option


def pytest_addoption(parser: pytest.Parser) -> None:
    coverage_option.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    coverage_option.configure(config)
