"""Co-simulation: one device interface over the RTL and the golden model, and the driver that uses either."""
