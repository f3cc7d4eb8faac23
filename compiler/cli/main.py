"""Entry point of `mla`: finds the verb, runs it, and turns every outcome into an exit status.

0 done, 1 the work failed, 2 bad usage or bad input, 130 interrupted, 143 terminated.
"""

import argparse
import importlib
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from compiler import __version__
from hw.errors import MlaError

VERBS = ("doctor", "asm", "disasm", "graph", "bench", "verilog", "fpga")

INTERRUPTED = 128 + signal.SIGINT
FAILED = 1


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line, as all errors of `mla` are."""

    def error(self, message: str) -> NoReturn:
        """Leave with status 2 after one line on standard error."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def build_parser() -> Parser:
    """The parser of the whole command line; each verb's `run` is in the parsed arguments."""
    parser = Parser(prog="mla", description="An open machine-learning accelerator and its tools.")
    parser.add_argument("--version", action="version", version=f"mla {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name in VERBS:
        module = importlib.import_module(f"compiler.cli.{name}")
        verb = verbs.add_parser(
            name,
            help=module.SUMMARY,
            description=f"{module.SUMMARY[0].upper()}{module.SUMMARY[1:]}.",
            epilog=f"example: {module.EXAMPLE}",
        )
        verb.add_argument("-v", "--verbose", action="store_true", help="log progress to standard error")
        module.add_arguments(verb)
        verb.set_defaults(run=module.run)
    return parser


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


def _run(args: argparse.Namespace) -> int:
    """Run the verb; its expected failures become one line on standard error and a status."""
    try:
        status = args.run(args)
        sys.stdout.flush()
        return status
    except MlaError as error:
        print(f"mla {args.verb}: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print(f"mla {args.verb}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe went away (`| head`); give the interpreter's last flush somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        print(f"mla {args.verb}: {error.strerror or error}{where}", file=sys.stderr)
        return FAILED


def main(argv: Sequence[str] | None = None) -> int:
    """Run `mla` with the given arguments (default: the process's) and return the exit status."""
    args = build_parser().parse_args(argv)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO if args.verbose else logging.WARNING, format="%(message)s"
    )
    with _unwinding_signals():
        return _run(args)


if __name__ == "__main__":
    sys.exit(main())
