"""Co-simulation: a common device interface for the RTL and the golden model, and a host driver that uses it."""
