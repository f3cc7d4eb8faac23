"""Exit status, errors and warnings of a command."""

import io
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from compiler.cli.options import unwatch_files
from compiler.util import files
from hw.errors import MlaError, Terminated, printable, reason_of

INTERRUPTED = 128 + signal.SIGINT
FAILED = 1
#: Packages of this project; a missing module in one of them is a defect.
_OWN_PACKAGES = ("hw", "cosim", "compiler")


def _terminate(signum: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated(128 + signum)


@contextmanager
def _unwinding_signals() -> Iterator[None]:
    """Raise Terminated on SIGTERM and SIGHUP within the context, so that cleanup code runs."""
    previous = {signum: signal.signal(signum, _terminate) for signum in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


def open_standard_streams() -> None:
    """Connect standard streams that are closed, as in daemons, to the null device.

    Otherwise the next opened file would get the descriptor of a standard stream, and messages would be written to it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The new file gets the lowest free descriptor, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if isinstance(
        sys.stdout, io.TextIOWrapper
    ):  # names may contain characters that the terminal's encoding lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115  remains open, like the stream


def run_to_status(name: str, work: Callable[[], int]) -> int:
    """Run a command and turn expected failures into one line on standard error and an exit status.

    Parameters
    ----------
    name : str
        Name of the command; the error line begins with it.
    work : callable
        Function that runs the command and returns its exit status, or raises SystemExit.

    Returns
    -------
    int
        Exit status, which is also nonzero if standard output could not be written.
    """
    open_standard_streams()
    with _unwinding_signals(), recorded_warnings():
        try:
            return _flushed(work)
        except MlaError as error:
            _log(f"{name}: {error}")
            return error.exit_status
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package in ("", *_OWN_PACKAGES):
                raise
            _log(f"{name}: the package {package} is missing; see mla doctor")
            return FAILED
        except KeyboardInterrupt:
            _log(f"{name}: interrupted")
            return INTERRUPTED
        except BrokenPipeError:  # the reader of the pipe has exited (`| head`)
            return FAILED
        except OSError as error:
            where = f": {error.filename}" if error.filename else ""
            _log(f"{name}: {reason_of(error)}{where}")
            return FAILED
        finally:
            _drop_unwritten_output()
            unwatch_files()


def _flushed(work: Callable[[], int]) -> int:
    """Call `work` and flush its output; raise OSError if flushing fails."""
    try:
        status = work()
    except SystemExit as leaving:
        if not leaving.code:
            _flush_output()
        raise
    _flush_output()
    return status


def _flush_output() -> None:
    try:
        sys.stdout.flush()
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from error


def _log(line: str) -> None:
    """Write a line to standard error and ignore failures to write."""
    with suppress(OSError):
        print(printable(line), file=sys.stderr, flush=True)


def _drop_unwritten_output() -> None:
    """Discard buffered output that cannot be written, by redirecting its stream to the null device.

    Otherwise the interpreter would try to flush it at exit, print its own message and change the exit status.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class _Recorder(logging.Handler):
    """Log handler that records the messages of all warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if (message := record.getMessage()) not in self.messages:
            self.messages.append(message)


_recorder = _Recorder()


@contextmanager
def recorded_warnings() -> Iterator[None]:
    """Record the warnings of a command for `warnings` and discard the warnings of the previous command."""
    _recorder.messages.clear()
    root = logging.getLogger()
    root.addHandler(_recorder)
    try:
        yield
    finally:
        root.removeHandler(_recorder)


class FirstTime(logging.Filter):
    """Filter that drops warnings whose message has been logged before, for example for another target."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True for the first record with its message, and for records that are not warnings."""
        message = record.getMessage()
        if record.levelno < logging.WARNING:
            return True
        if message in self._seen:
            return False
        self._seen.add(message)
        return True


def warn(message: str) -> None:
    """Print a warning to standard error and record it."""
    print(printable(message), file=sys.stderr, flush=True)
    _recorder.messages.append(message)


def warnings() -> list[str]:
    """Return the messages of all warnings of the running command, for the JSON field `warnings`."""
    return list(_recorder.messages)


def with_warnings(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON document of a report with the warnings of the running command."""
    return {**document, "warnings": warnings()}


def report(document: Mapping[str, Any], text: str, destination: str | None) -> None:
    """Print the report of a verb that compiles a model as `compiler.util.files.report` does, with the warnings."""
    files.report(with_warnings(document), text, destination)


def targets_status(judged: Iterable[Mapping[str, Any]]) -> int:
    """Return the exit status of a verb for the entries of `PerformanceTargets.judged`: 1 if a target is missed.

    A message on standard error states the missed targets. Targets whose value is not known are not missed.
    """
    missed = [each["target"].replace("_", " ") for each in judged if each["met"] is False]
    if missed:
        _log(f"missed targets: {', '.join(dict.fromkeys(missed))}")
    return FAILED if missed else 0
