"""Benchmark suites; every result is checked against an independent reference in the same run."""

from compiler.bench.suite import run_suite
from compiler.bench.table import format_document

__all__ = ["format_document", "run_suite"]
