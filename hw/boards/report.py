"""Report of a board build: extracted from the JSON output of nextpnr, and formatted as JSON and as text."""

import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hw.errors import WorkError


@dataclass(frozen=True, kw_only=True)
class CriticalPath:
    """The slowest path from register to register.

    Parameters
    ----------
    start, end : str
        Cell and port of the first and the last register.
    logic_ns, routing_ns : float
        Delay of the path in cells (including setup and clock-to-output) and in wires.
    hops : tuple of str
        For each wire of the path except carries: its name, its delay, and the delay of the cell that it drives.
    """

    start: str
    end: str
    logic_ns: float
    routing_ns: float
    hops: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SeedResult:
    """Result of one placement.

    Parameters
    ----------
    seed : int
        Seed of the placer.
    fmax_mhz : float
        Maximum frequency of the chip's clock.
    resources : dict
        Counts "used" and "available" of each resource, by resource name.
    critical_path : CriticalPath
        Path that limits the clock frequency.
    """

    seed: int
    fmax_mhz: float
    resources: dict[str, dict[str, int]]
    critical_path: CriticalPath


@dataclass(frozen=True, kw_only=True)
class BoardReport:
    """Results of a build for a board.

    Parameters
    ----------
    board, part : str
        Name of the board, and its FPGA.
    clock_mhz : float
        Clock frequency that every placement must meet.
    seeds : tuple of SeedResult
        Result of each placement seed.
    bitstream : str
        Path of the bitstream, which contains the fastest placement.
    """

    board: str
    part: str
    clock_mhz: float
    seeds: tuple[SeedResult, ...]
    bitstream: str

    @property
    def worst(self) -> SeedResult:
        """The slowest placement, which determines whether the build meets the clock."""
        return min(self.seeds, key=lambda result: result.fmax_mhz)

    @property
    def best(self) -> SeedResult:
        """The fastest placement, which the bitstream contains."""
        return max(self.seeds, key=lambda result: result.fmax_mhz)

    @property
    def meets_clock(self) -> bool:
        """True if even the slowest placement meets the board's clock."""
        return self.worst.fmax_mhz >= self.clock_mhz

    def to_document(self) -> dict[str, Any]:
        """Return the report as data that JSON can represent."""
        return {
            "board": self.board,
            "part": self.part,
            "clock_mhz": self.clock_mhz,
            "meets_clock": self.meets_clock,
            "seeds": [{"seed": result.seed, "fmax_mhz": result.fmax_mhz} for result in self.seeds],
            "worst": asdict(self.worst),
            "bitstream": self.bitstream,
        }


def parse_critical_path(path: list[dict[str, Any]]) -> CriticalPath:
    """Return the critical path from one entry of nextpnr's `critical_paths`, a list of cell and wire delays."""
    hops = []
    for wire, cell in itertools.pairwise(path):
        if wire["type"] == "routing" and wire["delay"] > 0:
            port = cell["from"]["port"]
            hops.append(f"{wire['net']} ({wire['delay']:.2f} ns) -> {port} ({cell['delay']:.2f} ns)")
    return CriticalPath(
        start=f"{path[0]['to']['cell']}.{path[0]['to']['port']}",
        end=f"{path[-1]['from']['cell']}.{path[-1]['from']['port']}",
        logic_ns=round(sum(part["delay"] for part in path if part["type"] != "routing"), 2),
        routing_ns=round(sum(part["delay"] for part in path if part["type"] == "routing"), 2),
        hops=tuple(hops),
    )


def parse_seed(text: str, seed: int, resources: Mapping[str, str]) -> SeedResult:
    """Return the result of one placement from the text of nextpnr's report.

    Parameters
    ----------
    text : str
        Text of the JSON report.
    seed : int
        Seed of the placer.
    resources : mapping
        nextpnr's cell name for each resource.

    Raises
    ------
    WorkError
        The text is not a nextpnr report, or it contains no clocked path.
    """
    try:
        document = json.loads(text)
        # The board's input clock drives only the PLL, so the chip's clock is the only clock with paths.
        clock, timing = min(document["fmax"].items(), key=lambda item: item[1]["achieved"])
        edge = f"posedge {clock}"
        path = next(p["path"] for p in document["critical_paths"] if p["from"] == p["to"] == edge)
        counts = document["utilization"]
        absent = {"used": 0, "available": 0}
        return SeedResult(
            seed=seed,
            fmax_mhz=round(timing["achieved"], 2),
            resources={name: dict(counts.get(cell, absent)) for name, cell in resources.items()},
            critical_path=parse_critical_path(path),
        )
    except (ValueError, KeyError, IndexError, StopIteration) as error:
        raise WorkError(f"the placer's report of seed {seed} cannot be parsed: {error!r}") from error


def format_report(report: BoardReport) -> str:
    """Return the report as text."""
    worst = report.worst
    path = worst.critical_path
    seeds = "  ".join(f"{result.seed}: {result.fmax_mhz:.1f}" for result in report.seeds)
    verdict = "met" if report.meets_clock else "MISSED"
    lines = [
        f"{report.board} ({report.part})",
        f"Fmax of the worst seed: {worst.fmax_mhz:.1f} MHz ({report.clock_mhz:g} MHz {verdict})",
        f"Fmax by seed, MHz:      {seeds}",
    ]
    for name, count in worst.resources.items():
        share = 100 * count["used"] / max(count["available"], 1)
        lines.append(f"{name:8} {count['used']:6} of {count['available']:6}  {share:5.1f}%")
    lines += [
        f"critical path: {path.logic_ns:.2f} ns logic, {path.routing_ns:.2f} ns routing",
        f"  from {path.start}",
        *[f"    {hop}" for hop in path.hops],
        f"  to   {path.end}",
        f"bitstream: {report.bitstream}",
    ]
    return "\n".join(lines)


def write_report(report: BoardReport, folder: Path) -> None:
    """Write `report.json` and `report.txt` into a folder."""
    document = {"schema_version": 1, **report.to_document()}
    (folder / "report.json").write_text(json.dumps(document, indent=2) + "\n")
    (folder / "report.txt").write_text(format_report(report) + "\n")
