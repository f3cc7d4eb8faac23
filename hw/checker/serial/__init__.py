"""Serial checker for small FPGAs, which reads one field per cycle under the control of microcode."""
