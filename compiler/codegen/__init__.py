"""From the steps of layers to programs: order, addresses, semaphores, loops, text of programs."""
