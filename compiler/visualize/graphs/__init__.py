"""Compiler stages as networkx graphs, for text, drawings and other programs."""

from compiler.visualize.graphs.stages import EARLY, STAGES, view_of
from compiler.visualize.graphs.view import View

__all__ = ["EARLY", "STAGES", "View", "view_of"]
