"""Dynamic dispatch: programs that the machine itself chooses among, by guards (docs/dispatch.md)."""
