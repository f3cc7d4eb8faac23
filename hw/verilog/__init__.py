"""Writer of Verilog, and passes that rearrange the Verilog for fast simulation."""
