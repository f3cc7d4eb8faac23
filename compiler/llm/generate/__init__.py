"""The language model as a generator of candidates."""
