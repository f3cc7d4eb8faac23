"""Checks of a command's fields and of the memory it touches, before it is issued."""
