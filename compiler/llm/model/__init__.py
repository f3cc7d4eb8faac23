"""Transformer of the language model: inference in numpy, execution on the accelerator, and model files."""
