"""Options of the whole suite."""

import signal

import pytest

from tests.support import coverage_option, vcd_option


def pytest_addoption(parser: pytest.Parser) -> None:
    coverage_option.add_option(parser)
    vcd_option.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    coverage_option.configure(config)
    vcd_option.configure(config)
    # A shell starts what runs in the background deaf to Ctrl-C, and children inherit that: the tests that interrupt
    # some need it heard.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
