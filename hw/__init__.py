"""The chip in Amaranth: its configuration, encodings, units, top level and the writer of its Verilog."""
