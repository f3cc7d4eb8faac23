"""Co-simulation: a common device interface of the RTL and the golden model, and the driver that uses it."""
