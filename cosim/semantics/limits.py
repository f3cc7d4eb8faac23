"""Architectural limits that no configuration changes."""

#: Macro-instructions in flight at once.
MAX_IN_FLIGHT = 8
