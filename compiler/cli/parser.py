"""The parser of `mla`'s command line, from its verbs."""

import argparse
import importlib
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn

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
    "exec",
    "explore",
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
    "completion",
)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line, as all errors of `mla` are, with a suggestion for a misspelling."""

    def _print_message(self, message: str, file: "SupportsWrite[str] | None" = None) -> None:
        """Write a message; argparse ignores all errors of writing, this only those of standard error."""
        if file is sys.stdout:
            sys.stdout.write(message)
        else:
            super()._print_message(message, file)

    def error(self, message: str) -> NoReturn:
        """Leave with status 2 after one line on standard error."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:  # type: ignore[override]
        """Refuse unknown arguments in the parser of the verb that they were given to, which knows its options."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = [name for name in self._option_string_actions if name.startswith("--")]
            near = (did_you_mean(each.partition("=")[0], options) for each in unknown if each.startswith("-"))
            self.error(f"unrecognized arguments: {' '.join(unknown)}{next(filter(None, near), '')}")
        return parsed, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        names = [str(each) for each in action.choices]
        advice = did_you_mean(str(value), names) or f" (choose from {', '.join(names)})"
        raise argparse.ArgumentError(action, f"invalid choice: {value!r}{advice}")


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Advice to append to a message about a misspelled word: the nearest name, or "" if none is near."""
    near = get_close_matches(word, list(names), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


class _Version(argparse.Action):
    """`--version`: versions of what decides about results and builds; found out only when asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_others: Any, **_named: Any) -> NoReturn:
        from compiler.cli.doctor_checks import versions

        print("\n".join([f"mla {__version__}", *(f"{name} {found}" for name, found in versions())]))
        parser.exit()


def build_parser() -> Parser:
    """The parser of the whole command line; each verb's `run` is in the parsed arguments."""
    parser = Parser(prog="mla", description="An open machine-learning accelerator and its tools.")
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="show versions and the cache folder, and exit"
    )
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
