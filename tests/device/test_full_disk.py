"""A disk that fills up during the build of a simulator is reported, even if tools hide the error."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cosim.rtl.errors import BuildError, DiskFullError
from cosim.rtl.runner import run_tool

ROOT = Path(__file__).parents[2]
#: A user without special rights may mount a small disk in a separate namespace.
NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]

# Behaves like Verilator: it fills the disk and ignores the error, and a later tool fails for another reason.
SILENT_TOOL = "head -c 64M /dev/zero > big 2> /dev/null; echo '*** No targets.  Stop.'; exit 2"

ON_A_SMALL_DISK = """
import os, subprocess, sys
from pathlib import Path
from hw.errors import MlaError
from cosim.rtl.runner import run_tool

folder, tool = Path(sys.argv[1]), sys.argv[2]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], check=True)
try:
    run_tool(["sh", "-c", tool], cwd=folder, env=dict(os.environ))
except MlaError as error:
    print(type(error).__name__, error)
"""


def may_mount() -> bool:
    """Return True if users of this machine may create namespaces."""
    try:
        return subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not may_mount(), reason="no namespaces for users on this machine, so no small disk")
@pytest.mark.parametrize(
    ("tool", "said"),
    [
        (SILENT_TOOL, "DiskFullError no room left on the disk while sh was building in "),
        ("echo '*** No targets.  Stop.'; exit 2", "BuildError sh failed (status 2):\n*** No targets."),
    ],
)
def test_full_disk_without_error_of_the_tool(tmp_path: Path, tool: str, said: str):
    command = [*NAMESPACE, sys.executable, "-c", ON_A_SMALL_DISK, str(tmp_path), tool]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(said)


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        (errno.ENOSPC, DiskFullError, "no room left on the disk while sh"),
        (errno.EDQUOT, DiskFullError, "no room left on the disk while sh"),
        (errno.EOPNOTSUPP, BuildError, "sh failed"),
    ],
)
def test_full_disk_is_detected_by_allocation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, error: type, message: str
):
    def refuse(*_arguments: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(error, match=message):
        run_tool(["sh", "-c", "exit 2"], cwd=tmp_path, env=dict(os.environ))
    assert list(tmp_path.iterdir()) == []
