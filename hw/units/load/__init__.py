"""LOAD: DRAM to scratchpad, parameter slots and tables."""
