"""Schedules of layers and networks, as data."""
