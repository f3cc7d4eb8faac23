"""Training data: measured trajectories of schedules and edits, examples, held-out layers, rollouts."""
