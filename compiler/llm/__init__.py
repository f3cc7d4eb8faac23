"""A small language model that writes schedules and micro-programs, and what surrounds it."""
