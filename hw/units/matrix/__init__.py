"""MATRIX: the unit that contains the systolic array."""
