"""Parallel checker, which reads all fields of a command at once and forms several products per cycle."""
