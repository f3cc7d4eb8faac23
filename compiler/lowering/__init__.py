"""Lowering of the graph: operator fusion to layers, aliasing of tensors, and partition between accelerator and host."""
