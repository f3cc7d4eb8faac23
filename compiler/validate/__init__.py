"""The static validator: what every program must pass before it may be loaded, whoever wrote it."""

from compiler.validate.errors import KINDS, InstructionLocation, ValidationError
from compiler.validate.explore import validate
from compiler.validate.macro_call import MacroCall
from compiler.validate.report import ProofReport

__all__ = ["KINDS", "InstructionLocation", "MacroCall", "ProofReport", "ValidationError", "validate"]
