"""Performance counters: what each cycle of the array went to, and sums of every event by tag."""
