"""Options and fixtures of the whole suite."""

import os
import signal

import numpy as np
import pytest

from tests.support import coverage_option, waveform_option


def pytest_addoption(parser: pytest.Parser) -> None:
    coverage_option.add_option(parser)
    waveform_option.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    coverage_option.configure(config)
    waveform_option.configure(config)
    # A shell starts what runs in the background deaf to Ctrl-C, and children inherit that: the tests that interrupt
    # some need it heard.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers; the seed is printed, and `MLA_SEED` gives one."""
    seed = int(os.environ.get("MLA_SEED", "0")) or int.from_bytes(os.urandom(4), "little")
    print(f"MLA_SEED={seed}")
    return np.random.default_rng(seed)
