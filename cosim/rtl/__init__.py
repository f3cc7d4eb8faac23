"""The RTL in Verilator under cocotb: build, cache, server process, DRAM model."""
