"""`--waveforms DIR` makes failing block tests write their waveforms to DIR, as VCD files named after the test.

The option `--trace` is defined by pytest and opens the debugger.
"""

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from amaranth.sim import Simulator

_PLUGIN = "mla-waveforms"


def add_option(parser: pytest.Parser) -> None:
    """Declare the options."""
    parser.addoption(
        "--waveforms", metavar="DIR", help="leave the waveforms (VCD) of failing block tests in DIR"
    )
    parser.addoption(
        "--waveforms-all", action="store_true", help="with --waveforms: also leave waveforms of passing tests"
    )


def configure(config: pytest.Config) -> None:
    """Enable waveforms if the option is given."""
    folder, keep_all = config.getoption("--waveforms"), bool(config.getoption("--waveforms-all"))
    if folder:
        _Recorder.active = _Recorder(Path(folder), keep_all)
        config.pluginmanager.register(_Recorder.active, _PLUGIN)
    elif keep_all:
        raise pytest.UsageError("--waveforms-all needs --waveforms DIR, the folder of the files")


@contextmanager
def waveform(simulator: Simulator) -> Iterator[None]:
    """Record the simulation inside the `with` block if the option is given."""
    if _Recorder.active is None:
        yield
        return
    with simulator.write_vcd(str(_Recorder.active.next_file())):
        yield


class _Recorder:
    """Pytest plugin that names waveforms after the running test and removes unwanted ones."""

    active: "_Recorder | None" = None

    def __init__(self, folder: Path, keep_all: bool):
        self._folder, self._keep_all = folder.absolute(), keep_all
        self._folder.mkdir(parents=True, exist_ok=True)
        self._test, self._files = "", []

    def next_file(self) -> Path:
        """Return the file for the next simulation of the running test."""
        suffix = f"-{len(self._files) + 1}" if self._files else ""
        self._files.append(self._folder / f"{self._test}{suffix}.vcd")
        return self._files[-1]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Name the waveforms after this test."""
        self._test = re.sub(r"[^\w.-]+", "_", item.nodeid.replace("::", "-")).strip("_")
        self._files = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the names of the waveforms to the failure message."""
        report = yield
        if call.when == "call":
            if report.failed and self._files:
                report.sections.append(("Waveforms", "\n".join(map(str, self._files))))
            elif not self._keep_all:
                for file in self._files:
                    file.unlink(missing_ok=True)
        return report
