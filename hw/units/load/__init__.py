"""LOAD: transfers from DRAM to the scratchpad, parameter slots and tables."""
