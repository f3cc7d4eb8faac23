"""Performance counters: the use of each cycle of the array, and sums of every event by tag."""
