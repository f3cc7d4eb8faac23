"""Report of the hardware coverage: `python -m scripts.coverage DIR`, after `pytest --hw-coverage DIR`."""

import argparse
import json
import sys
from pathlib import Path

from compiler.util.files import write_output
from hw.errors import MlaError
from scripts.coverage.merge import merge
from scripts.coverage.report import Report
from scripts.coverage.sources import ROOT
from scripts.coverage.waivers import read_waivers

WAIVERS = ROOT / "tests" / "soak" / "unreached.toml"


def main(arguments: list[str] | None = None) -> int:
    """Print the report; return status 1 if it contains failures, or 2 if the input is invalid."""
    parser = argparse.ArgumentParser(prog="python -m scripts.coverage", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder written by pytest --hw-coverage")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the report as JSON")
    parser.add_argument(
        "--waivers", type=Path, default=WAIVERS, metavar="FILE", help="waivers of unreached lines (TOML)"
    )
    options = parser.parse_args(arguments)
    try:
        report = Report(merge(options.folder), read_waivers(options.waivers))
        print("\n".join(report.lines()))
        if options.json:
            write_output(options.json, f"{json.dumps(report.json(), indent=1)}\n".encode())
            print(f"\nreport: {options.json}")
    except MlaError as error:
        print(f"coverage: {error}", file=sys.stderr)
        return error.exit_status
    failures = report.failures()
    for failure in failures:
        print(f"coverage: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
