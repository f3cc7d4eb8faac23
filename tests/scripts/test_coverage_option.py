"""Tests of `--hw-coverage`: source positions in the Verilog, and count files of several processes."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from amaranth.hdl import Elaboratable, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from cosim.device import SimulatorDiedError
from hw.errors import WorkError
from hw.verilog.writer import convert
from scripts.coverage.counts import VerilatorPoint, read_counts, write_counts
from scripts.coverage.source_map import SourceMap
from tests.support.coverage_option import Collector
from tests.support.coverage_verilog import annotated

POINT = VerilatorPoint(2, 3, "v_line", "case", "m", "2")


class Selector(wiring.Component):
    """A component with a case, nested conditions and a default."""

    a: In(2)
    y: Out(2)

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        with m.Switch(self.a):
            with m.Case(0):
                m.d.comb += self.y.eq(1)  # place: case 0
            with m.Case(1), m.If(self.a[0]):
                m.d.comb += self.y.eq(2)
            with m.Default():
                m.d.comb += self.y.eq(3)  # place: default
        return m


class Device:
    """A device that writes a count or raises an error."""

    def __init__(self, count: int | WorkError):
        self.count = count

    def write_coverage(self, path: Path) -> None:
        if isinstance(self.count, WorkError):
            raise self.count
        write_counts(path, Counter({POINT: self.count}))


def _place(text: str) -> int:
    """Return the line of this file that ends in a marker comment."""
    lines = Path(__file__).read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if line.endswith(f"# place: {text}"))


def test_annotated_logic_equals_original():
    def bare(text: str) -> list[str]:
        text = re.sub(r"\(\* .*? \*\)|/\* src.*?\*/", "", text)
        return [line.strip() for line in text.splitlines() if line.strip()]

    assert bare(annotated(Selector(), "top")) == bare(convert(Selector(), "top"))


def test_cases_have_source_positions():
    text = annotated(Selector(), "top")
    source_map = SourceMap(text)
    labels = {line.strip(): number for number, line in enumerate(text.splitlines(), 1) if line.endswith(":")}
    found: dict[str, Any] = {
        label: source_map.location(VerilatorPoint(number, 3, "v_line", "case", "top"))
        for label, number in labels.items()
    }
    assert found["2'h0:"].line == _place("case 0") - 1
    assert found["default:"].line == _place("default")
    assert found["default:"].file.endswith("tests/scripts/test_coverage_option.py")


def test_counts_of_devices_are_summed_per_process(tmp_path: Path):
    first, second = Collector(tmp_path), Collector(tmp_path)
    key = first.key("text")
    assert second.key("text") == key and (tmp_path / f"{key}.v").read_text() == "text"
    for collector, count in ((first, 1), (first, 2), (second, 4)):
        collector.add(key, Device(count))  # pyright: ignore[reportArgumentType]
    files = sorted(tmp_path.glob(f"{key}.*.dat"))
    assert sorted(read_counts(path)[POINT] for path in files) == [3, 4]
    assert len(list(tmp_path.iterdir())) == 3


def test_dead_device_is_ignored(tmp_path: Path):
    collector = Collector(tmp_path)
    collector.add("key", Device(SimulatorDiedError("gone")))  # pyright: ignore[reportArgumentType]
    assert list(tmp_path.iterdir()) == []


def test_unwritable_counts_raise(tmp_path: Path):
    with pytest.raises(WorkError, match="no room"):
        Collector(tmp_path).add("key", Device(WorkError("no room")))  # pyright: ignore[reportArgumentType]
