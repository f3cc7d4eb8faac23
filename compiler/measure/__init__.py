"""Schedules tried out on machines: compiled, proved, run, compared."""
