"""Serial checker for small FPGAs: reads one field a cycle, driven by microcode."""
