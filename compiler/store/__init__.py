"""What the feedback loop remembers: hardware profiles, measurements, best programs, executions (docs/store.md)."""
