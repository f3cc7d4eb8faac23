"""Options and fixtures of the whole test suite."""

import gc
import os
import signal
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from tests.support import coverage_option, random_cases, waveform_option
from tests.support.seeds import random_seed

#: Thresholds of the three generations of the garbage collector. Tests build large compiled networks, which collections
#: at Python's thresholds traverse again and again: that takes a tenth of the time of the tests of layers.
_GC_THRESHOLDS = 100_000, 20, 20


def pytest_addoption(parser: pytest.Parser) -> None:
    coverage_option.add_option(parser)
    waveform_option.add_option(parser)
    random_cases.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    coverage_option.configure(config)
    waveform_option.configure(config)
    random_cases.configure(config)
    # Tests measure the static compiler's programs, not those that the user's database knows.
    os.environ["MLA_DB"] = "off"
    # A shell starts background jobs with SIGINT ignored, and child processes inherit that. Tests that interrupt
    # processes need SIGINT enabled.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    random_cases.draw(config, items)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Exclude modules and tests from garbage collection, which otherwise takes a fifth of the time of the tests, and
    collect garbage less often.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        gc.enable()


@pytest.fixture
def rng() -> np.random.Generator:
    """Return a random generator; its seed is printed, and `MLA_SEED` sets it."""
    return np.random.default_rng(random_seed())


@pytest.fixture
def drawn(request: pytest.FixtureRequest) -> Callable[[Sequence[int]], list[int]]:
    """Return a function that returns the seeds to try of those of a loop; see `--random-cases`."""
    return lambda seeds: random_cases.sample(request.config, request.node.nodeid, seeds)
