"""MATRIX: the unit around the systolic array."""
