"""Schedules of small networks with their measured cycles: what the language model is trained with."""
