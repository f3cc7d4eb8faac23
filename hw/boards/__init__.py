"""Generation of a bitstream from a component: board descriptions, the scan harness, the tool flow and its report."""
