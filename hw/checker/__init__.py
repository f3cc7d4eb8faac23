"""Checks of a command's fields and of its memory accesses, before the command is issued."""
