"""Synthesis, place and route with several seeds, bitstream and report."""

import os
from collections.abc import Callable
from pathlib import Path

from amaranth.lib import wiring

from hw.boards.board import Board
from hw.boards.build_dir import build_directory
from hw.boards.dsp_packing import register_products
from hw.boards.dsp_placement import fix_multipliers
from hw.boards.nextpnr_options import ROUTING, set_options
from hw.boards.report import BoardReport, parse_seed, write_report
from hw.boards.toolchain import ECPPACK, NEXTPNR, YOSYS, Job, Progress, run_all, silent
from hw.boards.top import BoardTop
from hw.config import MlaConfig
from hw.verilog.writer import convert


def build(
    board: Board, config: MlaConfig, *, seeds: int, folder: Path, progress: Progress = silent
) -> BoardReport:
    """Build the chip for a board; see `build_component`."""
    from hw.chip import Chip

    return build_component(board, lambda: Chip(config), seeds=seeds, folder=folder, progress=progress)


def build_component(
    board: Board,
    make: Callable[[], wiring.Component],
    *,
    seeds: int,
    folder: Path,
    progress: Progress = silent,
) -> BoardReport:
    """Build any component for a board, its ports on a scan chain.

    Parameters
    ----------
    board : Board
        Board to build for.
    make : callable
        Returns the component to build, in the sync domain; called after the folder was checked.
    seeds : int
        Placements; the slowest is reported, the fastest becomes the bitstream.
    folder : Path
        Takes Verilog, logs, `report.json`, `report.txt` and the bitstream, all when the build is done; only files of
        an earlier build are replaced. A build that fails leaves its logs, an interrupted one nothing.
    progress : callable
        Called with lines of text that report progress.

    Raises
    ------
    InputError
        The folder cannot be used, or holds a file of one of these names that no build made.
    WorkError
        A tool failed.
    """
    numbers = range(1, seeds + 1)
    with build_directory(folder, _files(board, numbers)) as work:
        (work / "top.v").write_text(convert(BoardTop(make(), board.pll), "top"))
        (work / "top.lpf").write_text(board.constraints())
        script = "read_verilog -sv top.v; synth_ecp5 -top top -json top.json"
        synthesis = Job(tool=YOSYS, arguments=["-p", script], folder=work, log="yosys.log", title="synthesis")
        run_all([synthesis], progress=progress)
        fix_multipliers(work / "top.json", board)
        register_products(work / "top.json")
        set_options(work / "top.json", ROUTING)
        workers = os.cpu_count() or 1
        run_all([_place(board, work, seed) for seed in numbers], workers=workers, progress=progress)
        run_all([_route(board, work, seed) for seed in numbers], workers=workers, progress=progress)
        for seed in numbers:
            (work / _placed(seed)).unlink()  # over a hundred megabytes each
        results = tuple(parse_seed((work / f"seed{n}.json").read_text(), n) for n in numbers)
        report = BoardReport(
            board=board.name,
            part=board.part,
            clock_mhz=board.clock_mhz,
            seeds=results,
            bitstream=str(folder / _bitstream(board)),
        )
        _pack(work, report.best.seed, _bitstream(board), progress)
        write_report(report, work)
    return report


def _bitstream(board: Board) -> str:
    return f"{board.name}.bit"


def _files(board: Board, seeds: range) -> list[str]:
    """Everything that a build writes."""
    of_seeds = [f"seed{seed}.{kind}" for seed in seeds for kind in ("log", "config", "json")]
    placings = [name for seed in seeds for name in (f"place{seed}.log", _placed(seed))]
    return [
        "top.v",
        "top.lpf",
        "top.json",
        "yosys.log",
        *placings,
        *of_seeds,
        "ecppack.log",
        _bitstream(board),
        "report.json",
        "report.txt",
    ]


def _placed(seed: int) -> str:
    return f"placed{seed}.json"


def _place(board: Board, folder: Path, seed: int) -> Job:
    """Place with one seed, for the board's clock."""
    arguments = [
        *_common(board, seed),
        "--json",
        "top.json",
        "--write",
        _placed(seed),
        "--no-route",
        "--placer-heap-beta",
        "0.75",  # less dense than the default: dense regions run out of wires
        # Late paths weigh more than by default: the chip, seed 2, reaches 78.7 MHz instead of 62.7.
        "--placer-heap-critexp",
        "4",
        "--placer-heap-timingweight",
        "30",
    ]
    return Job(
        tool=NEXTPNR, arguments=arguments, folder=folder, log=f"place{seed}.log", title=f"placing {seed}"
    )


def _route(board: Board, folder: Path, seed: int) -> Job:
    """Route with one seed; the report states if the clock is missed.

    A separate call without a clock constraint: with one, the router gives short wires to late nets, and conflicts about
    them never end on a full device (the chip, seed 2: 5,062 conflicts after 45 minutes and rising; without the
    constraint none after 18 minutes, and 65.5 MHz).
    """
    arguments = [
        *_common(board, seed),
        "--json",
        _placed(seed),
        "--no-pack",
        "--no-place",
        "--router",
        "router2",  # the default one is many times slower on a full device
        "--textcfg",
        f"seed{seed}.config",
        "--report",
        f"seed{seed}.json",
    ]
    return Job(
        tool=NEXTPNR, arguments=arguments, folder=folder, log=f"seed{seed}.log", title=f"routing {seed}"
    )


def _common(board: Board, seed: int) -> list[str]:
    return [
        f"--{board.device}",
        "--package",
        board.package,
        "--speed",
        board.speed,
        "--lpf",
        "top.lpf",
        "--seed",
        str(seed),
        "--timing-allow-fail",
    ]


def _pack(folder: Path, seed: int, bitstream: str, progress: Progress) -> None:
    """Turn the configuration of one seed into the bitstream."""
    arguments = ["--compress", "--input", f"seed{seed}.config", "--bit", bitstream]
    run_all(
        [Job(tool=ECPPACK, arguments=arguments, folder=folder, log="ecppack.log", title="bitstream")],
        progress=progress,
    )
