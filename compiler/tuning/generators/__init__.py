"""Generators, which propose schedules and micro-programs for layers."""
