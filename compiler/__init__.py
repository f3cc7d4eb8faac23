"""Compiler, runtime, tuner and command line (`mla`) of the accelerator."""

__version__ = "0.1.0"
