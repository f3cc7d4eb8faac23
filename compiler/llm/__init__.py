"""Small language model that writes schedules and micro-programs, including its training and evaluation."""
