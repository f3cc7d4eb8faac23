"""Compiled networks: what they consist of, and how they run on a device."""
