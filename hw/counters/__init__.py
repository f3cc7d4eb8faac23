"""Performance counters: the cause of each cycle of the array, and sums of every event by tag."""
