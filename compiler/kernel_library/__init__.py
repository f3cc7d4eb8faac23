"""Host wrappers of the hand-written micro-programs for single operators."""
