"""RTL simulation with Verilator and cocotb: build, cache, server process, DRAM model."""
