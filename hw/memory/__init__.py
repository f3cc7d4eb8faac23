"""On-chip memories: the one wrapper, the scratchpad, the accumulator and the instruction store; stream buffers."""
