"""Implementation of `make bench`: runs each suite in its own process and writes docs/benchmarks.md from the results."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from compiler.bench.page import TITLES, benchmark_page, benchmark_picture
from compiler.cli.exit_status import run_to_status

ROOT = Path(__file__).parent.parent
REPORTS = ROOT / "build" / "bench"
PAGE, PICTURE = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "pictures" / "benchmarks.svg"


def run_suites(suites: list[str]) -> int:
    """Run suites and, if all suites have results, write the page; return the maximum exit status."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    status = 0
    for suite in suites:
        command = [
            sys.executable,
            "-m",
            "compiler.cli.main",
            "bench",
            suite,
            "--json",
            str(REPORTS / f"{suite}.json"),
        ]
        status = max(status, subprocess.run(command, cwd=ROOT, check=False).returncode)
    documents = {
        suite: json.loads(path.read_text())
        for suite in TITLES
        if (path := REPORTS / f"{suite}.json").exists()
    }
    if status == 0 and documents.keys() == TITLES.keys():
        PAGE.write_text(benchmark_page(documents, "pictures/benchmarks.svg"))
        PICTURE.write_text(benchmark_picture(documents))
        print(f"wrote {PAGE.relative_to(ROOT)} and {PICTURE.relative_to(ROOT)}", file=sys.stderr)
    return status


def main() -> int:
    """Run the suites that are named on the command line."""
    parser = argparse.ArgumentParser(description="Run the benchmarks and write their page.")
    parser.add_argument("suites", nargs="+", metavar="SUITE", help="suites to run")
    return run_suites(parser.parse_args().suites)


if __name__ == "__main__":
    sys.exit(run_to_status("bench", main))
