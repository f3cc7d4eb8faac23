"""Compiler stages as networkx graphs, for text, drawings and other programs."""
