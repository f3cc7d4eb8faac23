"""Dynamic dispatch: the hardware selects among programs by guards (docs/dispatch.md)."""
