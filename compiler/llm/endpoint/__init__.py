"""Generators that ask a language model through an OpenAI-compatible endpoint, within a budget."""
