"""Reference operators in numpy, used for host operators, for constant folding and as a reference in tests."""

from compiler.reference.evaluate import evaluate, run_node
from compiler.reference.node_invocation import Kernels

__all__ = ["Kernels", "evaluate", "run_node"]
