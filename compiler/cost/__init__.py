"""Cost models of compiled layers: lower bounds by roofline and compulsory traffic, energy, learned model of cycles.

Estimates that lower layers of the compiler need are computed there, since this package depends on code generation: the
cycles of a command in `compiler.commands`, the tile model of a layer in `compiler.layers`. Estimates that need a whole
compiled or tuned network are in `compiler.tuning` and `compiler.visualize`. docs/compiler.md lists all of them.
"""
