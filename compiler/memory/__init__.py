"""Where everything lies: scratchpad, accumulator, slots, tables and DRAM by lifetime."""
