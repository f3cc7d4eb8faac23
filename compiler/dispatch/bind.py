"""What the dispatch table holds for a program and those behind guards."""

from collections.abc import Sequence

from compiler.codegen.programs import Part
from cosim.programs import Candidate


def candidates(part: Part, segments: Sequence[int]) -> list[Candidate]:
    """The entries of an opcode; `segments` are those of the part's `programs`."""
    guards = [variant.guard for variant in part.instead]
    return [
        *(Candidate(s, g.compare, g.selector, g.value) for s, g in zip(segments, guards, strict=False)),
        Candidate(segments[-1]),
    ]
