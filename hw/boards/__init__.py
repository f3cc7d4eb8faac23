"""From a component to a bitstream: board descriptions, the scan harness, the tool flow and its report."""
