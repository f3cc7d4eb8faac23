"""The writer of Verilog and the passes that rearrange it for fast simulation."""
