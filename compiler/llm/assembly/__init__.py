"""Micro-programs as words of the language model, and the grammar that lets it write nothing but programs."""
