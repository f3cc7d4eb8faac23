"""Benchmark suites; every result is checked against an independent reference in the same run."""

from compiler.bench.page import format_document
from compiler.bench.suite import run_suite

__all__ = ["format_document", "run_suite"]
