"""Synthesis, place and route with several seeds, bitstream and report."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from amaranth.lib import wiring

from hw.boards.board import Board
from hw.boards.report import BoardReport, parse_seed, write_report
from hw.boards.tools import ECPPACK, NEXTPNR, YOSYS, Job, Say, run_all, silent
from hw.boards.top import BoardTop
from hw.config import MlaConfig
from hw.emit import convert
from hw.errors import InputError


def build(board: Board, config: MlaConfig, *, seeds: int, folder: Path, say: Say = silent) -> BoardReport:
    """Build the chip for a board; see `build_component`."""
    from hw.chip import Chip

    return build_component(board, lambda: Chip(config), seeds=seeds, folder=folder, say=say)


def build_component(
    board: Board,
    make: Callable[[], wiring.Component],
    *,
    seeds: int,
    folder: Path,
    say: Say = silent,
) -> BoardReport:
    """Build any component for a board, its ports on a scan chain.

    Parameters
    ----------
    board : Board
        Target.
    make : callable
        Gives what to build, in the sync domain; called once the folder is known to serve.
    seeds : int
        Placements; the slowest is reported, the fastest becomes the bitstream.
    folder : Path
        Takes Verilog, logs, `report.json`, `report.txt` and the bitstream; an earlier build is removed first.
    say : callable
        Takes lines that tell how far it is.

    Raises
    ------
    InputError
        The folder cannot be used.
    WorkError
        A tool failed.
    """
    _prepare(folder)
    (folder / "top.v").write_text(convert(BoardTop(make(), board.pll), "top"))
    (folder / "top.lpf").write_text(board.constraints())
    script = "read_verilog -sv top.v; synth_ecp5 -top top -json top.json"
    synthesis = Job(tool=YOSYS, arguments=["-p", script], folder=folder, log="yosys.log", title="synthesis")
    run_all([synthesis], say=say)
    numbers = range(1, seeds + 1)
    run_all([_place(board, folder, seed) for seed in numbers], workers=os.cpu_count() or 1, say=say)
    results = tuple(parse_seed((folder / f"seed{n}.json").read_text(), n) for n in numbers)
    bitstream = folder / f"{board.name}.bit"
    report = BoardReport(
        board=board.name,
        part=board.part,
        clock_mhz=board.clock_mhz,
        seeds=results,
        bitstream=str(bitstream),
    )
    _pack(folder, report.best.seed, bitstream, say)
    write_report(report, folder)
    return report


def _prepare(folder: Path) -> None:
    """An empty folder; only one that a build made is ever emptied."""
    try:
        if (folder / "top.lpf").exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"folder {folder} cannot be used: {error.strerror}") from error


def _place(board: Board, folder: Path, seed: int) -> Job:
    """Place and route with one seed; a missed clock is for the report to tell."""
    arguments = [
        f"--{board.device}", "--package", board.package, "--speed", board.speed,
        "--json", "top.json", "--lpf", "top.lpf", "--seed", str(seed), "--timing-allow-fail",
        "--router", "router2",  # the default one takes many times as long on a full device
        "--textcfg", f"seed{seed}.config", "--report", f"seed{seed}.json",
    ]  # fmt: skip
    return Job(tool=NEXTPNR, arguments=arguments, folder=folder, log=f"seed{seed}.log", title=f"seed {seed}")


def _pack(folder: Path, seed: int, bitstream: Path, say: Say) -> None:
    """Turn the configuration of one seed into the bitstream, which appears whole or not at all."""
    arguments = ["--compress", "--input", f"seed{seed}.config", "--bit", "partial"]
    run_all(
        [Job(tool=ECPPACK, arguments=arguments, folder=folder, log="ecppack.log", title="bitstream")], say=say
    )
    (folder / "partial").replace(bitstream)
