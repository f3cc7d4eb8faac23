"""The search space: schedules of a layer, constraints, objectives."""
