"""Cost models of compiled layers: lower bounds by roofline and compulsory traffic, energy, learned model of cycles.

This package depends on code generation. Estimates that code generation needs are therefore in other packages: the
cycles of a command in `compiler.commands`, and the tile model of a layer in `compiler.layers`. Estimates that need a
whole compiled or tuned network are in `compiler.tuning` and `compiler.visualize`. docs/compiler.md lists all
estimates.
"""
