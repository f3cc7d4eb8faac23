"""Which schedule is tried next."""
