"""Code generation of programs from the steps of layers: order, addresses, semaphores, loops and emission."""
