"""Semantics of the instruction set, defined once for the golden model and the compiler.

The golden model and the compiler both use the following modules, which implement the formulas of docs/machine.md:

* `alu`: scalar arithmetic, comparisons and branch conditions of micro-instructions.
* `instruction`: the operation and the operands of a micro-instruction word, and the statistic that a selector names.
* `command_fields`: the fields of a unit command, unpacked from the raw words that SET writes.
* `command_checks`: the checks that the sequencer makes before it queues a command, and the trap that a failed check
  causes.
* `coordinates`, `bounding_box`: image coordinates and address ranges of a command, which the checks use.
* `fuse_points`: the points of a FUSE command and their addresses.
* `fixed_point`: scaling, rounding and saturation.
* `limits`: architectural limits of the machine.

The following code is independent of this package, so that an error in one implementation is not repeated in the other:

* The RTL. `hw` does not import `cosim`; it contains separate ALUs, checkers, address generators and scalers, and shares
  only the encodings in `hw.isa` with this package. The golden model is the reference for the RTL, and comparisons of
  the two also test this package.
* Unit execution in `cosim.golden`. LOAD, STORE and MATRIX compute their addresses and results independently and use
  bounding boxes only to find the first byte of a bus error. The compiler orders commands by their bounding boxes; the
  reference for this order is the golden model, which can interleave the units at random.
* Sequencing in `cosim.golden`: interpreter, dispatch, queues, semaphores, traps. The compiler's validator contains a
  separate symbolic executor and is tested with the golden model as its reference.
* References in tests. `tests/golden/reference.py` and `tests/numerics/reference.py` restate the arithmetic in Python
  integers and use no function of this package, because `compiler.reference` and the golden model of FUSE both use
  `fixed_point`.
"""
