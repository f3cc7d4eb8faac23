"""Performance counters: the cause of each array cycle, and the sum of each event by tag."""
