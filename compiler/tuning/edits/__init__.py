"""Edits of micro-programs: commands split or moved."""
