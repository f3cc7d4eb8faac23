"""Cycles of layers under schedules, predicted before they are compiled."""
