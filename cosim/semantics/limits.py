"""Architectural limits that no configuration changes."""

#: Maximum number of macro-instructions in flight.
MAX_IN_FLIGHT = 8
