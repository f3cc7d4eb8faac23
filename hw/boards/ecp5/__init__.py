"""Support for Lattice ECP5 FPGAs: primitives, tools and netlist edits."""
