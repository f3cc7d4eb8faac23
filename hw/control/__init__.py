"""The host's side of the machine: registers, command ring, dispatch, segments, completion, traps."""
