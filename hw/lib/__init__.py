"""Building blocks that are independent of the machine: memories, buffers, pipeline registers, trees."""
