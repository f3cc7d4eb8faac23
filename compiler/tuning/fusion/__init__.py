"""Fusion opportunities and the fusion engine."""
