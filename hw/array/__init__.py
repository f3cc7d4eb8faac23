"""The systolic array and what surrounds it."""
