"""The host interface of the machine: registers, command ring, dispatch, segments, completion, traps."""
