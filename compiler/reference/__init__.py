"""The graph evaluated in numpy: what runs on the host, folds constants, and what tests compare with."""

from compiler.reference.evaluate import evaluate, run_node
from compiler.reference.node_invocation import Kernels

__all__ = ["Kernels", "evaluate", "run_node"]
