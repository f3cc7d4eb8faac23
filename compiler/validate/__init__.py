"""Static validator, which must accept every program before the program is loaded."""

from compiler.validate.errors import KINDS, InstructionLocation, ProofReport, ValidationError
from compiler.validate.explore import validate
from compiler.validate.macro_call import MacroCall

__all__ = ["KINDS", "InstructionLocation", "MacroCall", "ProofReport", "ValidationError", "validate"]
