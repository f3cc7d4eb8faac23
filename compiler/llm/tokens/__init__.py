"""Tokens: vocabulary, integers, schedule deltas, program edits, prompts."""
