"""A small language model that writes schedules and micro-programs, with its training and evaluation."""
