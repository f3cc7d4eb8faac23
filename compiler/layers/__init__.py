"""Layers: one file for each kind, with its dataclass, lowering, tilings, tile model and code generation."""
