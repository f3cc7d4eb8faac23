"""Command line of `mla`: its parser, and the entry point, which runs a verb and returns the exit status.

The exit status is 0 on success, 1 if the work failed, 2 for bad usage or bad input, 130 if interrupted, and 143 if
terminated.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from compiler import __version__
from hw.errors import did_you_mean

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

BAD_USAGE = 2
INTERRUPTED = 130

VERBS = (
    "doctor",
    "asm",
    "disasm",
    "validate",
    "graph",
    "compile",
    "run",
    "eval",
    "exec",
    "explore",
    "profile",
    "fuse",
    "tune",
    "optimize",
    "calibrate",
    "serve",
    "db",
    "isa",
    "llm",
    "bench",
    "verilog",
    "fpga",
    "completion",
)


class Parser(argparse.ArgumentParser):
    """ArgumentParser with one-line errors and suggestions for misspelled names."""

    def _print_message(self, message: str, file: "SupportsWrite[str] | None" = None) -> None:
        """Write a message; unlike argparse, do not ignore errors on standard output."""
        if file is sys.stdout:
            sys.stdout.write(message)
        else:
            super()._print_message(message, file)

    def error(self, message: str) -> NoReturn:
        """Print one line on standard error and exit with status 2."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:  # type: ignore[override]
        """Parse arguments; exit with an error that suggests options of the verb if an argument is unknown."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = [
                name
                for name, action in self._option_string_actions.items()
                if name.startswith("--") and action.help is not argparse.SUPPRESS
            ]
            near = (did_you_mean(each.partition("=")[0], options) for each in unknown if each.startswith("-"))
            self.error(f"unrecognized arguments: {' '.join(unknown)}{next(filter(None, near), '')}")
        return parsed, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        names = [str(each) for each in action.choices]
        advice = did_you_mean(str(value), names) or f" (choose from {', '.join(names)})"
        raise argparse.ArgumentError(action, f"invalid choice: {value!r}{advice}")


class _Version(argparse.Action):
    """`--version`: prints the versions of the project and of the tools that affect results and builds."""

    def __call__(self, parser: argparse.ArgumentParser, *_others: Any, **_named: Any) -> NoReturn:
        from compiler.cli.doctor import versions

        print("\n".join([f"mla {__version__}", *(f"{name} {found}" for name, found in versions())]))
        parser.exit()


def build_parser() -> Parser:
    """Return the parser of the whole command line; the parsed arguments contain the verb's `run` function."""
    parser = Parser(prog="mla", description="An open machine-learning accelerator and its tools.")
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="show versions and the cache folder, and exit"
    )
    verbs = parser.add_subparsers(dest="verb", metavar="COMMAND", required=True)
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run `mla` with the given arguments (default: `sys.argv[1:]`) and return the exit status."""
    try:
        # Imported here so that Ctrl-C during the import is caught.
        import logging

        from compiler.cli.exit_status import FirstTime, run_to_status

        def parse_and_run() -> int:
            parser = build_parser()
            given = sys.argv[1:] if argv is None else argv
            if not given:
                parser.print_help(sys.stderr)
                return BAD_USAGE
            args = parser.parse_args(given)
            root = logging.getLogger()
            # Not basicConfig, since the handler that records warnings for reports is already installed.
            if not any(isinstance(handler, logging.StreamHandler) for handler in root.handlers):
                handler = logging.StreamHandler(sys.stderr)
                handler.addFilter(FirstTime())
                root.addHandler(handler)
                root.setLevel(logging.INFO if args.verbose else logging.WARNING)
            return run_to_status(f"mla {args.verb}", lambda: args.run(args))

        return run_to_status("mla", parse_and_run)
    except KeyboardInterrupt:
        print("mla: interrupted", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
