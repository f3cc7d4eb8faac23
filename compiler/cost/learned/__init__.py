"""The learned cost model: features of layers under schedules, boosted trees, errors."""
