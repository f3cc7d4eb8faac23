"""Checker for small FPGAs: one field a cycle, driven by microcode."""
