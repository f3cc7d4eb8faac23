"""The compiler's stages as graphs of networkx, to be printed, drawn, or looked into by programs."""

from compiler.views.stages import EARLY, STAGES, view_of
from compiler.views.view import View

__all__ = ["EARLY", "STAGES", "View", "view_of"]
