"""On-chip memories: scratchpad, accumulator, instruction store, and the port signatures of their users."""
