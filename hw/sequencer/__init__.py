"""The sequencer: instruction fetch, decode and execution, hardware loops, calls, command issue, semaphores."""
