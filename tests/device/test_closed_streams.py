"""Devices can be opened in processes with closed standard streams, such as daemons."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sim_device import open_sim

ROOT = Path(__file__).parents[2]
USE = """
import sys
from pathlib import Path
from tests.support.sim_chip import Reg
from tests.support.sim_device import GO_READ, open_sim, traffic

with open_sim() as device:
    device.dram[:64] = 7
    traffic(device, GO_READ, 20)
    Path(sys.argv[1]).write_text(f"{device.read_reg(Reg.IDENTITY)} {device.dram[:64].sum()}")
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_device_works_with_closed_streams(tmp_path: Path, closed: str) -> None:
    with open_sim():  # build the simulator first, if necessary
        pass
    seen = []
    for streams in ("", closed):
        command = ["sh", "-c", f'exec "$0" "$@" {streams}', sys.executable, "-c", USE, tmp_path / "seen"]
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, b"")
        seen.append((tmp_path / "seen").read_text())
        (tmp_path / "seen").unlink()
    assert seen[0] == seen[1] and seen[0].endswith(" 448")
