"""The control side: ring, dispatch, instruction fetch and execution, bounds, semaphores, traps, live loading."""
