"""AXI4 master with its arbiters and DMA address generators, AXI4-Lite slave, and the register map."""
