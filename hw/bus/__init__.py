"""AXI4 master, AXI4-Lite slave and the registers behind it."""
