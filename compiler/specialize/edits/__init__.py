"""Edits of micro-programs: commands split and moved, semaphores made anew."""
