"""Programs without loops."""

from compiler.codegen.emit import emit
from compiler.specialize.edits.unroll import unrolled
from hw.isa.program import Program

#: Tags by their own numbers.
_TAGS = range(64)


def straight(program: Program) -> Program | None:
    """The program that issues the same one after the other; None: it does something else as well."""
    found = unrolled(program)
    if found is None or found.fenced:
        return None
    return emit(program.name, found.commands, _TAGS, alone=found.alone)
