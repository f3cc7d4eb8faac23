"""Layers under schedules as tiles that pass the units: an estimate of their cycles."""
