"""Command that runs node tests and prints one line per test; with --page, it also writes the documentation page."""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from scripts.onnx_nodes.case import Placement, run
from scripts.onnx_nodes.page import PAGE, page
from scripts.onnx_nodes.suite import node_tests


def main() -> int:
    """Run the tests; return status 1 if a test fails."""
    parser = argparse.ArgumentParser(prog="python -m scripts.onnx_nodes", description=__doc__)
    parser.add_argument(
        "pattern", nargs="?", default="", help="run only tests whose name contains this string"
    )
    parser.add_argument("--page", action="store_true", help=f"run all tests and write {PAGE}")
    args = parser.parse_args()
    started, results = time.monotonic(), []
    tests = [test for test in node_tests() if args.page or args.pattern in test.name]
    for test in tests:
        results.append(result := run(test))
        print(f"{result.where.name.lower():11} {result.name} {result.error:.3f} {result.reason}", flush=True)
    counts = Counter(result.where for result in results)
    print(
        ", ".join(f"{counts[where]} {where.name.lower()}" for where in Placement),
        f"in {time.monotonic() - started:.0f} s",
    )
    if args.page:
        Path(PAGE).write_text(page(tests, results))
    return int(counts[Placement.FAILED] > 0)


if __name__ == "__main__":
    sys.exit(main())
