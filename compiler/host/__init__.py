"""The graph evaluated in numpy: what runs on the host, folds constants, and what tests compare with."""

from compiler.host.call import Kernels
from compiler.host.evaluate import evaluate, run_node

__all__ = ["Kernels", "evaluate", "run_node"]
