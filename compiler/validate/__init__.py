"""The static validator: what every program must pass before it may be loaded, whoever wrote it."""

from compiler.validate.call import Call
from compiler.validate.check import validate
from compiler.validate.errors import KINDS, Place, ValidationError
from compiler.validate.report import Report

__all__ = ["KINDS", "Call", "Place", "Report", "ValidationError", "validate"]
