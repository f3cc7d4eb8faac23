"""Helpers that any part of the compiler may use."""
