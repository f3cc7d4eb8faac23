"""STORE: scratchpad to DRAM."""
