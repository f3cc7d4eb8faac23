"""The host's side of the library of micro-programs, the benchmarks, and the command line, `mla`."""

__version__ = "0.1.0"
