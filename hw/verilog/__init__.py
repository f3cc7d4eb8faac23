"""Writer of Verilog, and passes that rearrange it for fast simulation."""
