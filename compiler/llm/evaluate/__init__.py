"""Evaluation of the language model on held-out layers."""
