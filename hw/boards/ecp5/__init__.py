"""Lattice ECP5: its primitives, its tools and edits of its netlists."""
