"""Parallel checker: reads all fields of a command at once and forms several products a cycle."""
