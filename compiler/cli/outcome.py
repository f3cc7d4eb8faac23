"""Turns every outcome of a command into one line at most on standard error and an exit status.

0 done, 1 the work failed, 2 bad usage or bad input, 130 interrupted, 143 terminated, 129 hung up.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from compiler.cli.claims import release
from compiler.cli.warn import recorded_warnings
from hw.errors import MlaError

INTERRUPTED = 128 + signal.SIGINT
FAILED = 1


def _terminate(signum: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + signum)


@contextmanager
def _unwinding_signals() -> Iterator[None]:
    """Let signals that would end the process at once unwind it instead, so that everything is cleaned up."""
    previous = {signum: signal.signal(signum, _terminate) for signum in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


def run_to_status(name: str, work: Callable[[], int]) -> int:
    """Run `work`, which gives a status; its expected failures become one line that begins with `name`, and a status."""
    with _unwinding_signals(), recorded_warnings():
        try:
            status = work()
            sys.stdout.flush()
            return status
        except MlaError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return error.exit_status
        except KeyboardInterrupt:
            print(f"{name}: interrupted", file=sys.stderr)
            return INTERRUPTED
        except BrokenPipeError:
            # The reader of a pipe went away (`| head`); give the interpreter's last flush somewhere to go.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return FAILED
        except OSError as error:
            where = f": {error.filename}" if error.filename else ""
            print(f"{name}: {error.strerror or error}{where}", file=sys.stderr)
            return FAILED
        finally:
            release()
