"""Constrained decoding: grammars and the sampler."""
