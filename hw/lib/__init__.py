"""Building blocks with no knowledge of the machine: memories, buffers, pipeline registers, trees."""
