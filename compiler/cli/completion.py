"""`mla completion`: prints a script that lets a shell complete commands and options."""

import argparse

SUMMARY = "print a script that completes commands and options in a shell"
EXAMPLE = 'eval "$(mla completion bash)"'
SHELLS = ("bash", "zsh")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command-line options of the verb."""
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=f"{' or '.join(SHELLS)}")


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    import shtab

    from compiler.cli.main import build_parser

    print(shtab.complete(build_parser(), shell=args.shell))
    return 0
