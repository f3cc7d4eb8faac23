"""Edits of micro-programs, which split or move commands."""
