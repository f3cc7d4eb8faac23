"""Constrained decoding: sampler, and the grammar of program edits."""
