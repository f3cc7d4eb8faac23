"""The systolic array and the line buffer that feeds it."""
