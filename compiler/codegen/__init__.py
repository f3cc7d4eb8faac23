"""Code generation from the steps of layers to programs: order, addresses, semaphores, loops and emission."""
