"""Parallel checker, which reads all fields of a command in parallel and forms several products per cycle."""
