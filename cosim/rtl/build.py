"""Cached build of simulator binaries from Verilog."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from cosim.rtl import cache, toolchain
from cosim.rtl.build_progress import Build, Monitor, watch
from cosim.rtl.runner import TOP, ModelRunner

HERE = Path(__file__).parent
MODEL_SOURCES = ("main.cpp", "api.cpp", "dram.cpp", "host.cpp")
MODEL_HEADERS = ("model.h", "dram.h", "host.h")
COMPRESSION = "model/fst"
"""Folder of headers that replace the system's liblz4 and libz for the wave writer."""

VERILATOR_FLAGS = (
    "-O3",
    "--no-timing",
    "--no-assert",
    "--x-assign",
    "fast",
    "--x-initial",
    "unique",  # state without a reset is initialized from a seed, or with zeros if there is no seed
    "--output-split",
    "20000",
    "--output-split-cfuncs",
    "2000",
    "-Wno-fatal",
    "--quiet",
    "-CFLAGS",
    "-DVL_TIME_CONTEXT -O2",
    "-LDFLAGS",
    "-rdynamic",  # the cocotb code looks up the C interface in the process that it runs in
)
# Vectorization of the scattered assignments of a model reduces its speed by up to half; -O3 is not faster than -O2.
MAKE_FLAGS = ("OPT_FAST=-O2 -fno-tree-vectorize", "OPT_GLOBAL=-O2")

#: Build time of a simulator that records waves, relative to a simulator without this feature; it is longer because no
#: signal is optimized away.
_WAVES_FACTOR = 6


@dataclass(frozen=True)
class Variant:
    """Optional features that are built into a simulator.

    Each combination of features is a separate build, and each feature reduces the simulation speed.

    Parameters
    ----------
    waves : bool
        True to support recording all signals to FST files.
    coverage : bool
        True to support measuring the line coverage of the Verilog.
    probe : bool
        True to support recording the start and the end of commands and programs.
    """

    waves: bool = False
    coverage: bool = False
    probe: bool = False

    @property
    def flags(self) -> tuple[str, ...]:
        """Options that the features require for Verilator."""
        waves = ("--trace-fst", "--trace-structs", "-CFLAGS", f"-Isources/{COMPRESSION}", "-LDFLAGS", "-L.")
        return (waves if self.waves else ()) + (("--coverage-line",) if self.coverage else ())

    @property
    def label(self) -> str:
        """Names of the features; "plain" if there are none."""
        extras = [name for name, there in vars(self).items() if there]
        return ", ".join(extras) or "plain"

    def build_seconds(self, n: int) -> float:
        """Return the estimated build time in seconds on two idle cores, for an n x n array."""
        return (60 + n * n / 4) * (_WAVES_FACTOR if self.waves else 1)

    @property
    def fast(self) -> bool:
        """True if no feature observes signals of the chip, so that the Verilog may be rearranged for speed."""
        return not (self.waves or self.coverage)

    @property
    def modules(self) -> tuple[str, ...]:
        """Names of the Verilog files for the top level around the chip."""
        return ("mla_top.sv", "mla_probe.sv") if self.probe else ("mla_top.sv",)

    @property
    def model(self) -> tuple[str, ...]:
        """Names of the C++ files of the model."""
        return (*MODEL_SOURCES, "probe.cpp") if self.probe else MODEL_SOURCES


PLAIN = Variant()


def build_simulator(
    verilog: str, n: int, variant: Variant = PLAIN, monitor: Monitor | None = None, *, bus_bytes: int = 0
) -> Path:
    """Return the path of a chip's simulator, after building it if it is not in the cache.

    Parameters
    ----------
    verilog : str
        Verilog text with the module `mla_chip`.
    n : int
        Number of lanes of the chip.
    variant : Variant
        Optional features built into the simulator.
    monitor : Monitor or None
        Monitor that is notified if the simulator has to be built.
    bus_bytes : int
        Bus width of the chip in bytes; 0: n.

    Raises
    ------
    BuildError, ToolMissingError, DiskFullError
        The build failed; the cache is unchanged.
    """
    flags, sources, bus_bytes = (*VERILATOR_FLAGS, *variant.flags), _sources(variant), bus_bytes or n

    def make(folder: Path, lock: int) -> None:
        chip = folder / "chip.v"
        chip.write_text(verilog)
        work = folder / "work"
        around = work / "sources"
        for name, text in sources.items():
            (around / name).parent.mkdir(parents=True, exist_ok=True)
            (around / name).write_text(text)
        if variant.waves:
            for name in ("liblz4.a", "libz.a"):  # empty, because our headers define the functions inline
                (work / name).write_bytes(b"!<arch>\n")
        runner = ModelRunner(lock, MAKE_FLAGS)
        runner.build(
            sources=[chip, *(around / name for name in variant.modules)],
            hdl_toplevel=TOP,
            build_dir=work,
            parameters={"N": bus_bytes},
            build_args=[
                *flags,
                f"-I{around / 'model'}",
                *(str(around / "model" / name) for name in variant.model),
            ],
            timescale=("1ns", "1ns"),
        )
        (work / TOP).rename(folder / TOP)
        shutil.rmtree(work)

    build = Build(f"the simulator of the {n}x{n} chip ({variant.label})", variant.build_seconds(n))
    return cache.cached("sim", simulator_key(verilog, bus_bytes, variant), make, watch(monitor, build)) / TOP


def simulator_key(verilog: str, bus_bytes: int, variant: Variant) -> str:
    """Return the cache key of a simulator, a hash of all inputs that determine the simulator, except for paths.

    Parameters
    ----------
    verilog : str
        Verilog text with the module `mla_chip`.
    bus_bytes : int
        Bus width of the chip in bytes.
    variant : Variant
        Optional features built into the simulator.

    Raises
    ------
    ToolMissingError
        A tool whose version is part of the key is not installed.
    """
    sources = (part for item in _sources(variant).items() for part in item)
    return cache.cache_key(
        [
            verilog,
            str(bus_bytes),
            *sources,
            *VERILATOR_FLAGS,
            *variant.flags,
            *MAKE_FLAGS,
            *toolchain.versions(),
        ]
    )


def _sources(variant: Variant) -> dict[str, str]:
    """Return the contents of the files around the chip, by path relative to this package.

    The build copies these files to its folder, because make does not support blanks in paths, and the path of a
    checkout may contain blanks.
    """
    model = [HERE / "model" / name for name in (*variant.model, *MODEL_HEADERS)]
    paths = [*(HERE / name for name in variant.modules), *model, *sorted((HERE / COMPRESSION).glob("*.h"))]
    return {path.relative_to(HERE).as_posix(): path.read_text() for path in paths}
