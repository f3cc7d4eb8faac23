"""The wheel contains all files that the packages need at run time."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("compiler", "cosim", "hw")
#: Files next to the packages that the build needs.
OTHERS = ("pyproject.toml", "README.md", "LICENSE")


def tracked() -> set[str]:
    """Return the version-controlled files of the packages, except READMEs."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *PACKAGES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    names = {name for name in done.stdout.splitlines() if not name.endswith(".md") and (ROOT / name).exists()}
    assert len(names) > 100
    return names


def test_wheel_contains_all_files(tmp_path):
    names, source = tracked(), tmp_path / "source"
    for name in (*names, *OTHERS):
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((ROOT / name).read_bytes())
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--wheel-dir",
        tmp_path,
        source,
    ]
    subprocess.run(command, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if not name.partition("/")[0].endswith(".dist-info")}
        metadata = next(name for name in archive.namelist() if name.endswith("/METADATA"))
        text = archive.read(metadata).decode()
    assert found == names
    assert "Keywords: accelerator" in text and "Classifier: Typing :: Typed" in text
