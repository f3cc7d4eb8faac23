"""The compiler's stages as graphs of networkx, to be printed, drawn, or looked into by programs."""

from compiler.visualize.graphs.stages import EARLY, STAGES, view_of
from compiler.visualize.graphs.view import View

__all__ = ["EARLY", "STAGES", "View", "view_of"]
