"""Tokens of the language model: vocabulary, integers, prompts, schedule deltas, program edits, assembly."""
