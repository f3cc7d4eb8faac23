"""Tests of the progress display: format of a line, plain lines without a terminal, messages for builds only."""

import io
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from compiler.cli.main import main
from compiler.util import progress as module
from compiler.util.progress import INTERVAL_SECONDS, ProgressTask, building, clock, progress
from cosim.rtl import verilog_cache
from cosim.rtl.build import PLAIN, Variant
from cosim.rtl.build_progress import Build
from hw.config import load_target


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (125, "2 min 5 s"),
        (3600, "1 h 0 min"),
        (7384, "2 h 3 min"),
    ],
)
def test_format_of_durations(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_remaining_time_from_item_rate() -> None:
    task = ProgressTask("tuning", 40, "trials")
    assert task.describe(1.0) == "tuning: 0 of 40 trials, 1 s"
    task.advance(10, "best 3,000")
    assert task.describe(30.0) == "tuning: 10 of 40 trials, 30 s, about 1 min 30 s left, best 3,000"
    task.advance(30)
    assert task.describe(120.0) == "tuning: 40 of 40 trials, 2 min, about 0 s left, best 3,000"


def test_remaining_time_from_expected_duration() -> None:
    task = ProgressTask("emitting", seconds=40.0)
    assert task.describe(10.0) == "emitting: 10 s, about 30 s left"
    assert task.describe(50.0) == "emitting: 50 s"  # overdue, so the remaining time is unknown
    assert ProgressTask("compiling").describe(3.0) == "compiling: 3 s"


def test_plain_lines_every_ten_seconds_for_innermost_task(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    display = module._Display()
    monkeypatch.setattr(module, "_TICK_SECONDS", 1e6)  # this test calls _show instead of the thread
    outer, inner = ProgressTask("tuning", 9, "trials"), ProgressTask("building")
    display.push(outer)
    display.push(inner)
    for task in (inner, outer):
        for seconds in (INTERVAL_SECONDS - 1, INTERVAL_SECONDS, INTERVAL_SECONDS + 1, 2 * INTERVAL_SECONDS):
            display._show(display._tasks[-1], task.start + seconds)
        display.pop(task)
    assert capsys.readouterr().err.splitlines() == [
        "mla: building: 10 s",
        "mla: building: 20 s",
        "mla: tuning: 0 of 9 trials, 10 s",
        "mla: tuning: 0 of 9 trials, 20 s",
    ]


def test_terminal_line_is_updated_and_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(module, "_TICK_SECONDS", 1e6)
    display, task = module._Display(), ProgressTask("tuning", 2, "trials")
    display.push(task)
    display._show(task, task.start + 0.1)
    assert not screen.getvalue()  # tasks that end immediately are not shown
    task.advance(1, "a note that is much too long for a line of sixty characters")
    display._show(task, task.start + 8)
    assert "tuning: 1 of 2 trials, 8 s" in screen.getvalue() and "sixty" not in screen.getvalue()
    display.pop(task)
    assert screen.getvalue().endswith("\x1b[2K")  # the line is cleared


def test_no_control_characters_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with building(Build("the simulator of the 4x4 chip (probe)", 64)), progress("more"):
        pass
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == (
        "mla: building the simulator of the 4x4 chip (probe): once, then it is cached; "
        "about 1 min 4 s on two idle cores"
    )
    assert lines[1].startswith("mla: built the simulator of the 4x4 chip (probe) in ") and len(lines) == 2
    assert all(character.isprintable() for line in lines for character in line)


def test_build_is_reported_only_when_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLA_CACHE", str(tmp_path))
    monkeypatch.setattr(
        "hw.verilog.writer.emit_verilog", lambda config, path, **options: path.write_text("module")
    )
    told: list[str] = []

    def monitor(build: Build) -> AbstractContextManager[object]:
        told.append(build.what)
        return nullcontext()

    for _ in range(2):
        assert verilog_cache.chip_verilog(load_target("n4"), monitor=monitor) == "module"
    assert told == ["the Verilog of the 4x4 chip"]


def test_variant_labels_and_build_times() -> None:
    assert PLAIN.label == "plain"
    assert Variant(waves=True, probe=True).label == "waves, probe"
    assert Variant(waves=True).build_seconds(16) > PLAIN.build_seconds(16) > PLAIN.build_seconds(4)


def test_verilog_verb_shows_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way: list[str] = []

    def emit(config: object, path: Path) -> None:
        under_way.extend(task.what for task in module._DISPLAY._tasks)
        path.write_text("module")

    monkeypatch.setattr("hw.verilog.writer.emit_verilog", emit)
    assert main(["verilog", "-o", str(tmp_path / "chip.v"), "--target", "n8"]) == 0
    assert under_way == ["generating the Verilog of the 8x8 chip"] and not module._DISPLAY._tasks
