"""Checker for the full rate: all fields at once, several products a cycle."""
