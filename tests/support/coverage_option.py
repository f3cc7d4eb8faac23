"""`--hw-coverage DIR` counts the executed lines of every chip that a test simulates and writes the counts to DIR.

DIR receives the Verilog of each chip, `<key>.v`, and the counts of each process of the test run,
`<key>.<random>.dat`.
"""

import secrets
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cosim.device import SimulatorDiedError
from cosim.rtl import cache
from cosim.rtl.build import PLAIN
from cosim.rtl.rtl_device import RtlDevice
from scripts.coverage.counts import VerilatorPoint, read_counts, write_counts
from tests.support.coverage_verilog import annotated_verilog


def add_option(parser: pytest.Parser) -> None:
    """Declare the option."""
    parser.addoption(
        "--hw-coverage",
        metavar="DIR",
        help="count the lines of every simulated chip; add the counts to files in DIR",
    )


def configure(config: pytest.Config) -> None:
    """Enable counting if the option is given."""
    folder = config.getoption("--hw-coverage")
    if folder:
        Collector(Path(folder)).install()


class Collector:
    """Collector of the counts of this process, which enables counting in simulated chips.

    Parameters
    ----------
    folder : Path
        Output folder, created if absent.
    """

    def __init__(self, folder: Path):
        self.folder = folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.name = secrets.token_hex(4)  # a process id could be reused by the next run of pytest
        self.totals: dict[str, Counter[VerilatorPoint]] = defaultdict(Counter)

    def install(self) -> None:
        """Enable counting in every `RtlDevice` opened from now on, unless it has its own Verilog or a probe."""
        collector, opened, closed = self, RtlDevice.__init__, RtlDevice.close
        keys: dict[int, str] = {}

        def __init__(self: RtlDevice, config: Any, *args: Any, **options: Any) -> None:  # noqa: N807
            if options.get("verilog") is None and not options.get("variant", PLAIN).probe:
                text = annotated_verilog(config)
                options["verilog"] = text
                options["variant"] = replace(options.get("variant", PLAIN), coverage=True)
                opened(self, config, *args, **options)
                keys[id(self)] = collector.key(text)
            else:
                opened(self, config, *args, **options)

        def close(self: RtlDevice) -> None:
            key = keys.pop(id(self), None)
            try:
                if key is not None:
                    collector.add(key, self)
            finally:
                closed(self)

        RtlDevice.__init__, RtlDevice.close = __init__, close

    def key(self, verilog: str) -> str:
        """Return the name of a chip's files in the folder, and write the chip's Verilog there if it is missing."""
        key = cache.cache_key([verilog])
        path = self.folder / f"{key}.v"
        if not path.exists():
            part = path.with_suffix(f".{self.name}.part")
            part.write_text(verilog)
            part.replace(path)
        return key

    def add(self, key: str, device: RtlDevice) -> None:
        """Add the counts of a device; there are none if its simulator has died."""
        data = self.folder / f"{key}.{self.name}.new"
        try:
            device.write_coverage(data)
        except SimulatorDiedError:
            return
        self.totals[key].update(read_counts(data))
        data.unlink()
        write_counts(self.folder / f"{key}.{self.name}.dat", self.totals[key])
