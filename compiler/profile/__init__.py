"""What the counters say: energy, floors, where the cycles of each layer went."""
