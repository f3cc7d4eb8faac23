"""On-chip memories: scratchpad, accumulator, instruction store, and the signatures of their ports."""
