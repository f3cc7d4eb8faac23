"""Static validator that every program must pass before it is loaded."""

from compiler.validate.errors import KINDS, InstructionLocation, ValidationError
from compiler.validate.explore import validate
from compiler.validate.macro_call import MacroCall
from compiler.validate.report import ProofReport

__all__ = ["KINDS", "InstructionLocation", "MacroCall", "ProofReport", "ValidationError", "validate"]
