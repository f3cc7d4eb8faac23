"""Checks of a command's fields and memory accesses before the command is issued."""
