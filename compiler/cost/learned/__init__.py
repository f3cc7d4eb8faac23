"""The learned cost model: features of layers under schedules, boosted trees, and prediction errors."""
