"""Tests of the placement of the array's multipliers on DSP sites, with netlists in the form that Yosys writes."""

import json
import re
from typing import cast

import pytest

from hw.array.systolic import SystolicArray
from hw.boards.board import BOARDS
from hw.boards.ecp5.device import Ecp5
from hw.boards.ecp5.dsp_placement import fix_multipliers
from hw.boards.toolchain import YOSYS, Job, run_all
from hw.config import MlaConfig
from hw.verilog.writer import convert

DEVICE = cast(Ecp5, BOARDS["ulx3s-85f"].device)
SITE = re.compile(r"X(\d+)/Y(\d+)/MULT18_([0145])")


def netlist(path, cells: dict, netnames: dict):
    """Write a netlist with one module, and return its path."""
    module = {"attributes": {"top": "00000001"}, "cells": cells, "netnames": netnames}
    path.write_text(json.dumps({"modules": {"top": module}}))
    return path


def multiplier(*bits: int) -> dict:
    return {"type": "MULT18X18D", "attributes": {}, "connections": {"A": list(bits), "CLK": [1]}}


def sites(path) -> dict[str, str]:
    modules = json.loads(path.read_text())["modules"].values()
    cells = next(m["cells"] for m in modules if m["attributes"].get("top"))
    return {name: cell["attributes"]["BEL"] for name, cell in cells.items() if "BEL" in cell["attributes"]}


def test_elements_of_a_synthesized_array(tmp_path):
    """Each element is identified by its operands and placed in its column."""
    top = SystolicArray(MlaConfig(n=4))
    (tmp_path / "top.v").write_text(convert(top, "top"))
    script = "read_verilog -sv top.v; synth_ecp5 -top top -json top.json"
    run_all([Job(tool=YOSYS, arguments=["-p", script], folder=tmp_path, log="yosys.log", title="synthesis")])
    document = json.loads((tmp_path / "top.json").read_text())
    module = next(m for m in document["modules"].values() if m["attributes"].get("top"))
    for part in ("cells", "netnames"):  # the same names as in the chip
        module[part] = {f"matrix.array.{name}": value for name, value in module[part].items()}
    (tmp_path / "top.json").write_text(json.dumps(document))
    assert fix_multipliers(tmp_path / "top.json", DEVICE.multiplier_site) == 16
    matches = [SITE.fullmatch(site) for site in sites(tmp_path / "top.json").values()]
    found = [tuple(map(int, match.groups())) for match in matches if match]
    assert sorted({(x - offset, y) for x, y, offset in found}) == [(x, 10) for x in DEVICE.dsp_columns[:4]]
    assert len(set(found)) == 16


def test_other_multipliers_follow_array(tmp_path):
    cells = {f"inner.fuse.pipeline.requant.scale_0.m{i}": multiplier(i + 2) for i in range(5)}
    cells |= {"inner.elsewhere.m": multiplier(20), "inner.core.issue.checker.m": multiplier(21)}
    path = netlist(tmp_path / "top.json", cells, {})
    assert fix_multipliers(path, DEVICE.multiplier_site) == 6
    found = sites(path)
    assert "inner.elsewhere.m" not in found
    assert len(set(found.values())) == 6
    assert found["inner.core.issue.checker.m"] == "X96/Y34/MULT18_0"
    # The fifth element is placed in the next block.
    assert found["inner.fuse.pipeline.requant.scale_0.m4"] == "X31/Y58/MULT18_0"


@pytest.mark.parametrize("row", [12, 15])
def test_elements_beyond_device_are_unplaced(tmp_path, row: int):
    """Elements in rows that the device does not have are left unplaced."""
    names = {f"inner.matrix.array.operand_{row}_2": {"bits": [5, 6]}}
    path = netlist(tmp_path / "top.json", {"inner.matrix.array.m": multiplier(5, 6)}, names)
    before = path.read_text()
    assert fix_multipliers(path, DEVICE.multiplier_site) == 0
    assert path.read_text() == before
