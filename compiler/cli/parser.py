"""The parser of `mla`'s command line, from its verbs."""

import argparse
import importlib
import sys
from typing import TYPE_CHECKING, NoReturn

from compiler import __version__

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

VERBS = (
    "doctor",
    "asm",
    "disasm",
    "validate",
    "graph",
    "compile",
    "run",
    "profile",
    "fuse",
    "tune",
    "calibrate",
    "serve",
    "db",
    "llm",
    "bench",
    "verilog",
    "fpga",
)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line, as all errors of `mla` are."""

    def _print_message(self, message: str, file: "SupportsWrite[str] | None" = None) -> None:
        """Write a message; argparse ignores all errors of writing, this only those of standard error."""
        if file is sys.stdout:
            sys.stdout.write(message)
        else:
            super()._print_message(message, file)

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
