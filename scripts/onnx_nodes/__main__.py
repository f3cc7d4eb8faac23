"""Command that runs ONNX's node tests, or the models that the onnx package ships, and prints one line per test."""

import argparse
import sys
import time
from collections import Counter

from scripts.onnx_nodes.case import Placement, run
from scripts.onnx_nodes.page import PAGE, SHIPPED_PAGE, page, shipped_page
from scripts.onnx_nodes.suite import node_tests, shipped_tests


def main() -> int:
    """Run the tests; return status 1 if a test fails."""
    parser = argparse.ArgumentParser(prog="python -m scripts.onnx_nodes", description=__doc__)
    parser.add_argument(
        "pattern", nargs="?", default="", help="run only tests whose name contains this string"
    )
    parser.add_argument(
        "--shipped",
        action="store_true",
        help="run the models that the onnx package ships, not its node tests",
    )
    parser.add_argument(
        "--page",
        action="store_true",
        help=f"run all tests and write {PAGE} or, with --shipped, {SHIPPED_PAGE}",
    )
    args = parser.parse_args()
    started, results = time.monotonic(), []
    tests = shipped_tests() if args.shipped else node_tests()
    tests = [test for test in tests if args.page or args.pattern in test.name]
    for test in tests:
        results.append(result := run(test))
        print(f"{result.where.name.lower():11} {result.name} {result.error:.3f} {result.reason}", flush=True)
    counts = Counter(result.where for result in results)
    print(
        ", ".join(f"{counts[where]} {where.name.lower()}" for where in Placement),
        f"in {time.monotonic() - started:.0f} s",
    )
    if args.page:
        path, write = (SHIPPED_PAGE, shipped_page) if args.shipped else (PAGE, page)
        path.write_text(write(tests, results))
    return int(counts[Placement.FAILED] > 0)


if __name__ == "__main__":
    sys.exit(main())
