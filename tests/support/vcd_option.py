"""`--vcd DIR`: every test that uses Amaranth's simulator leaves a waveform of each of its runs in DIR.

The first run of a test writes `<test>.vcd`, and `<test>.gtkw` for GTKWave; further ones `<test>-2.vcd` and so on.
"""

import re
from pathlib import Path

import pytest
from amaranth.sim import Simulator


def add_option(parser: pytest.Parser) -> None:
    """Declare the option."""
    parser.addoption(
        "--vcd", metavar="DIR", help="write a waveform of every run of Amaranth's simulator to DIR"
    )


def configure(config: pytest.Config) -> None:
    """Switch recording on if the option is there."""
    folder = config.getoption("--vcd")
    if folder:
        config.pluginmanager.register(Recorder(Path(folder)))


class Recorder:
    """Makes `Simulator.run` and `run_until` write waveforms.

    Parameters
    ----------
    folder : Path
        Where the files go; made if absent.
    """

    def __init__(self, folder: Path):
        self.folder = folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)

    @pytest.fixture(autouse=True)
    def _record(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        """Wrap the simulator for one test."""
        name, runs = re.sub(r"[^\w.-]+", "_", request.node.name).strip("_"), 0

        def recorded(method: str):
            original = getattr(Simulator, method)

            def run(simulator: Simulator, *args, **named):
                nonlocal runs
                runs += 1
                path = self.folder / (name if runs == 1 else f"{name}-{runs}")
                with simulator.write_vcd(f"{path}.vcd", f"{path}.gtkw"):
                    return original(simulator, *args, **named)

            return run

        for method in ("run", "run_until"):
            monkeypatch.setattr(Simulator, method, recorded(method))
