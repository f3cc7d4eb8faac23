"""Helpers for tests of the static validator, in which << marks the line of the expected error in a program."""

import pytest

from compiler.validate import KINDS, MacroCall, ProofReport, ValidationError, validate
from hw.config import load_target
from hw.isa.assembler import assemble

CONFIG = load_target("n4")
WINDOWS = [(0x1000, 0x8FFF, 3), (0x9000, 0x9FFF, 1)]
LIMIT = 5000


def proof(source: str, *operands: int, calls: int = 1, **options) -> ProofReport:
    return validate(CONFIG, [MacroCall(assemble(source), operands)] * calls, WINDOWS, limit=LIMIT, **options)


def rejected(source: str, kind: str, *operands: int, text: str = "", **options) -> ValidationError:
    """Check that the program is rejected with an error of the given kind, at the line marked with <<."""
    with pytest.raises(ValidationError) as caught:
        proof(source, *operands, **options)
    error = caught.value
    marked = [number for number, line in enumerate(source.splitlines(), 1) if "<<" in line]
    assert error.kind == kind, error
    assert kind in KINDS
    assert [error.line] == marked, error
    assert text in error.reason
    return error
