"""`mla run` rejects a damaged model file with a single message, status 2 and no output."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.damaged_models import Damage, damages

ALL = list(damages())
#: Maximum growth of this process's memory over all files, in bytes.
_ROOM = 1 << 30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a model folder with a link to a file outside of it and a link to the folder of that file."""
    (tmp_path / "secret").write_bytes(bytes(1 << 16))
    models = tmp_path / "models"
    models.mkdir()
    (models / "link").symlink_to(tmp_path / "secret")
    (models / "links").symlink_to(tmp_path)
    return models


def _files(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and not path.is_symlink()}


def test_damaged_models_give_one_message(mla, folder: Path) -> None:
    """Damage that must be detected gives a single message; files with harmless random damage may run."""
    refused, before = 0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for damage in ALL:
        path = folder / f"model{damage.suffix}"
        path.write_bytes(damage.data)
        there = _files(folder.parent)
        result = mla("run", path, "--device", "golden", "--target", "n4", "--out", folder.parent / "out.npz")
        lines = result.err.splitlines()
        message = lines[-1] if lines else ""
        assert "Traceback" not in result.err, damage.what
        if damage.named is None and result.status == 0:
            (folder.parent / "out.npz").unlink()
            continue
        refused += 1
        assert result.status == 2 and not result.out, f"{damage.what}: {result.err}"
        assert message.startswith(f"mla run: {path}: "), f"{damage.what}: {result.err}"
        assert len(message) < 2000 and not any(line.startswith("mla run: ") for line in lines[:-1])
        assert damage.named is None or damage.named in message, f"{damage.what}: {message}"
        assert _files(folder.parent) == there, damage.what
    assert refused >= 200
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < _ROOM


@pytest.mark.parametrize("damage", [d for d in ALL if "2^" in d.what][::4] + ALL[:1], ids=lambda d: d.what)
def test_huge_sizes_with_limited_memory(folder: Path, damage: Damage) -> None:
    """Files with huge sizes are rejected before memory is allocated: the process has only 2 GiB of address space."""
    path = folder / f"model{damage.suffix}"
    path.write_bytes(damage.data)
    command = [sys.executable, "-m", "compiler.cli.main", "run", path, "--device", "golden"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30)),
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"mla run: {path}: ") and done.stderr.count("\n") == 1
