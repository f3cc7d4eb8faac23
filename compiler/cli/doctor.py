"""`mla doctor`: whether this machine has what the project needs."""

import argparse
from dataclasses import asdict

from compiler.cli.file_conflicts import claim
from compiler.cli.options import add_json
from compiler.util.files import report

SUMMARY = "check the tools and say how to get what is missing"
EXAMPLE = "mla doctor --json -"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Report every check; status 1 if one failed of what is not optional."""
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
    lines.append("everything is there" if missing == 0 else f"{missing} of {len(results)} checks failed")
    report(
        {"ok": missing == 0, "checks": [asdict(result) for result in results]}, "\n".join(lines), args.json
    )
    return 0 if missing == 0 else 1
