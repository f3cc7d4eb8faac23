"""Compiled networks, their file format, and their execution on a device."""
