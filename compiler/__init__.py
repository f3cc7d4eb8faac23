"""Models in, micro-programs out, and the feedback loop that improves them; also the command line, `mla`."""

__version__ = "0.1.0"
