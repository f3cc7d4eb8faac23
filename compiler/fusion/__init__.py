"""Layers carried out together: which can be, and ways to do it."""
