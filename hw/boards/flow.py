"""Synthesis, place and route with several seeds, bitstream and report."""

import os
from collections.abc import Callable
from pathlib import Path

from amaranth.lib import wiring

from hw.boards.board import Board
from hw.boards.build_dir import build_directory
from hw.boards.fpga_device import FpgaDevice
from hw.boards.report import BoardReport, parse_seed, write_report
from hw.boards.toolchain import YOSYS, Job, Progress, run_all, silent
from hw.boards.top import BoardTop
from hw.config import MlaConfig
from hw.verilog.writer import convert


def build(
    board: Board, config: MlaConfig, *, seeds: int, folder: Path, progress: Progress = silent
) -> BoardReport:
    """Build the chip for a board; see `build_component` for the other parameters."""
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
    """Build any component for a board, with the component's ports on a scan chain.

    Parameters
    ----------
    board : Board
        Board to build for.
    make : callable
        Function that returns the component to build, in the sync domain; called after the folder has been checked.
    seeds : int
        Number of placement seeds; the report states the slowest placement, and the bitstream contains the fastest.
    folder : Path
        Output folder for Verilog, logs, `report.json`, `report.txt` and the bitstream, which are written when the build
        is complete. Only files of an earlier build are replaced. A failed build leaves its logs; an interrupted build
        leaves nothing.
    progress : callable
        Function called with a line of text, and with the number of jobs that ended since the last call.

    Raises
    ------
    InputError
        The folder cannot be used, or it contains a file with one of the output names that no earlier build wrote.
    WorkError
        A tool failed.
    """
    numbers = range(1, seeds + 1)
    with build_directory(folder, _files(board, numbers)) as work:
        device = board.device
        (work / "top.v").write_text(convert(BoardTop(make(), device), "top"))
        (work / device.constraints_file).write_text(board.constraints())
        script = f"read_verilog -sv top.v; {device.synthesis}"
        synthesis = Job(tool=YOSYS, arguments=["-p", script], folder=work, log="yosys.log", title="synthesis")
        run_all([synthesis], progress=progress)
        device.adapt_netlist(work / "top.json")
        workers = os.cpu_count() or 1
        run_all([_place(device, work, seed) for seed in numbers], workers=workers, progress=progress)
        run_all([_route(device, work, seed) for seed in numbers], workers=workers, progress=progress)
        for seed in numbers:
            (work / _placed(seed)).unlink()  # each file is larger than a hundred megabytes
        results = tuple(
            parse_seed((work / f"seed{n}.json").read_text(), n, device.resources) for n in numbers
        )
        report = BoardReport(
            board=board.name,
            part=board.part,
            clock_mhz=board.clock_mhz,
            seeds=results,
            bitstream=str(folder / board.bitstream),
        )
        run_all([_pack(board, work, report.best.seed)], progress=progress)
        write_report(report, work)
    return report


def job_count(seeds: int) -> int:
    """Return the number of jobs of a build: synthesis, placing and routing with each seed, and the bitstream."""
    return 2 * seeds + 2


def _files(board: Board, seeds: range) -> list[str]:
    """Return the names of all files that a build writes."""
    of_seeds = [f"seed{seed}.{kind}" for seed in seeds for kind in ("log", "config", "json")]
    placings = [name for seed in seeds for name in (f"place{seed}.log", _placed(seed))]
    return [
        "top.v",
        board.device.constraints_file,
        "top.json",
        "yosys.log",
        *placings,
        *of_seeds,
        f"{board.device.packer.name}.log",
        board.bitstream,
        "report.json",
        "report.txt",
    ]


def _placed(seed: int) -> str:
    return f"placed{seed}.json"


def _place(device: FpgaDevice, folder: Path, seed: int) -> Job:
    """Return the job that places the design with one seed."""
    return Job(
        tool=device.nextpnr,
        arguments=device.place_arguments(seed, _placed(seed)),
        folder=folder,
        log=f"place{seed}.log",
        title=f"placing {seed}",
    )


def _route(device: FpgaDevice, folder: Path, seed: int) -> Job:
    """Return the job that routes the design with one seed; its report states the achieved frequency.

    The router runs as a separate call without a clock constraint. With a constraint, it assigns short wires to critical
    nets, and on a full device the conflicts over these wires are never resolved: for the chip with seed 2, there were
    5,062 conflicts after 45 minutes, and their number was rising. Without the constraint, all conflicts were resolved
    after 18 minutes, with a clock of 65.5 MHz.
    """
    return Job(
        tool=device.nextpnr,
        arguments=device.route_arguments(seed, _placed(seed), f"seed{seed}.config", f"seed{seed}.json"),
        folder=folder,
        log=f"seed{seed}.log",
        title=f"routing {seed}",
    )


def _pack(board: Board, folder: Path, seed: int) -> Job:
    """Return the job that converts the configuration of one seed to the bitstream."""
    device = board.device
    return Job(
        tool=device.packer,
        arguments=device.pack_arguments(f"seed{seed}.config", board.bitstream),
        folder=folder,
        log=f"{device.packer.name}.log",
        title="bitstream",
    )
