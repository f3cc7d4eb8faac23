"""Tests of the board flow with a design that is small enough to place in seconds, and of failures of the flow."""

import dataclasses
import json
import subprocess
import sys
from typing import cast

import pytest
from amaranth.hdl import Module, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.boards import toolchain as tools
from hw.boards.board import BOARDS
from hw.boards.ecp5.device import Ecp5, Pll
from hw.boards.flow import build_component, job_count
from hw.boards.toolchain import YOSYS, Job, Tool, run_all
from hw.errors import InputError, WorkError
from hw.lib.ram import Ram

BOARD = BOARDS["ulx3s-85f"]
DEVICE = cast(Ecp5, BOARD.device)


class Accumulator(wiring.Component):
    """Design with one multiplier and one block RAM."""

    a: In(signed(9))
    b: In(signed(9))
    address: In(10)
    total: Out(signed(32))

    def elaborate(self, platform):
        """Add the product to a word that is read from the memory."""
        m = Module()
        m.submodules.ram = ram = Ram(width=32, depth=1024, granularity=8)
        m.d.comb += [
            ram.w_addr.eq(self.address),
            ram.w_data.eq(self.total),
            ram.w_en.eq(-1),
            ram.r0_addr.eq(self.address),
        ]
        m.d.sync += self.total.eq(ram.r0_data + self.a * self.b)
        return m


def test_from_component_to_bitstream(tmp_path, monkeypatch):
    monkeypatch.setattr(tools, "_PROGRESS_SECONDS", 0.0)
    folder = tmp_path / "out"
    said: list[str] = []
    ended: list[int] = []

    def progress(text: str, count: int) -> None:
        said.append(text)
        ended.append(count)

    report = build_component(BOARD, Accumulator, seeds=2, folder=folder, progress=progress)
    assert sum(ended) == job_count(2)
    assert said[0] == "synthesis: started"
    assert any(line.startswith("routing 1: 0.") and line.count(":") >= 2 for line in said), said
    assert sum("done after" in line for line in said) == 6, said
    used = {name: count["used"] for name, count in report.worst.resources.items()}
    assert (used["dsp"], used["lut_ram"]) == (1, 0)
    assert 1 <= used["bram"] <= 2
    assert report.meets_clock
    assert [result.seed for result in report.seeds] == [1, 2]
    assert (folder / "ulx3s-85f.bit").stat().st_size > 1000
    document = json.loads((folder / "report.json").read_text())
    assert document["schema_version"] == 1
    assert document["worst"]["fmax_mhz"] == report.worst.fmax_mhz
    assert "Fmax of the worst seed" in (folder / "report.txt").read_text()


def test_placer_error_names_log(tmp_path):
    board = dataclasses.replace(BOARD, device=dataclasses.replace(DEVICE, package="CABGA999"))
    with pytest.raises(WorkError, match=r"nextpnr-ecp5 failed with status \d+: ERROR.*CABGA999.*place1\.log"):
        build_component(board, Accumulator, seeds=1, folder=tmp_path / "out")
    assert not (tmp_path / "out" / "report.json").exists()


def test_unusable_folder_is_rejected(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be used"):
        build_component(BOARD, Accumulator, seeds=1, folder=tmp_path / "file" / "out")


def test_failing_tool_names_its_log(tmp_path):
    job = Job(
        tool=YOSYS,
        arguments=["-p", "read_verilog absent.v"],
        folder=tmp_path,
        log="yosys.log",
        title="absent",
    )
    with pytest.raises(WorkError, match=r"yosys failed with status 1: ERROR: .*absent.*yosys\.log"):
        run_all([job])


def test_interrupt_kills_running_tools(tmp_path, monkeypatch):
    started: list[subprocess.Popen] = []
    start = subprocess.Popen

    def remember(*args, **options) -> subprocess.Popen:
        started.append(start(*args, **options))
        return started[-1]

    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    class Sleeper(Tool):
        def command(self, arguments):
            return [sys.executable, "-c", "import time; time.sleep(60)"]

    sleeper = Sleeper(name="sleeper", package="", function="")
    monkeypatch.setattr(tools.subprocess, "Popen", remember)
    monkeypatch.setattr(tools.time, "sleep", interrupt)
    jobs = [Job(tool=sleeper, arguments=[], folder=tmp_path, log=f"{n}.log", title="sleep") for n in range(3)]
    with pytest.raises(KeyboardInterrupt):
        run_all(jobs, workers=2)
    assert [process.returncode for process in started] == [-9, -9]


def test_board_constraints():
    text = BOARD.constraints()
    assert 'LOCATE COMP "clk_in" SITE "G2";' in text
    assert 'FREQUENCY PORT "clk_in" 25 MHZ;' in text
    assert BOARD.clock_mhz == 60


def test_impossible_clock():
    with pytest.raises(InputError, match=r"must run at 400\.\.800 MHz, not 300"):
        dataclasses.replace(
            BOARD, device=dataclasses.replace(DEVICE, pll=Pll(reference=5, feedback=12, output=5))
        )
