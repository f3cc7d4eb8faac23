"""From layers and their schedules to micro-programs: commands, their order, their semaphores, their loops."""
