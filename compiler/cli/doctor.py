"""`mla doctor`: checks that the required tools are installed."""

import argparse
from dataclasses import asdict

from compiler.cli.file_conflicts import claim
from compiler.cli.options import add_json
from compiler.util.files import report

SUMMARY = "check that the required tools are installed"
EXAMPLE = "mla doctor --json -"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command-line options of the verb."""
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Report every check; status 1 if a required one failed."""
    from compiler.cli.doctor_checks import CHECKS

    claim(args)
    results = [check() for check in CHECKS]
    lines = []
    for result in results:
        state = "ok" if result.ok else "optional" if result.needed_by else "MISSING"
        lines.append(f"{state:8} {result.name:20} {result.found}")
        if not result.ok:
            lines.append(f"         -> {result.remedy}")
    missing = sum(not result.ok and not result.needed_by for result in results)
    lines.append("all checks passed" if missing == 0 else f"{missing} of {len(results)} checks failed")
    report(
        {"ok": missing == 0, "checks": [asdict(result) for result in results]}, "\n".join(lines), args.json
    )
    return 0 if missing == 0 else 1
