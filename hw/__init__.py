"""The chip in Amaranth: its configuration, encodings, units, top level and Verilog writer."""
