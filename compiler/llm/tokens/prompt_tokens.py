"""Prompt tokens for the type of answer and for reasons of rejection."""

from collections.abc import Sequence
from enum import StrEnum

from compiler.layers.base import Layer
from compiler.profile.measurement import Rejected
from compiler.validate.errors import KINDS
from hw.errors import InputError


class Ask(StrEnum):
    """Types of answers."""

    SCHEDULE = "ask schedule"
    EDITS = "ask edits"
    PROGRAM = "ask program"


#: Measurement stages at which a candidate may fail, and outcomes of measured candidates that are not improvements.
_STAGES = ("compile", "time", "trap", "same")
#: Rejection tokens; refusals of the validator have their own names.
CAUSES = {cause: f"rejected {cause}" for cause in (*_STAGES, *KINDS)}
TOKENS = (*(ask.value for ask in Ask), *CAUSES.values())
#: Prefix of the message about the size of the instruction store.
_TOO_LONG = "the store has"


def rejected(result: Rejected) -> str:
    """Return the rejection token of a candidate."""
    if result.stage == "validate":
        # The text of a ValidationError has its kind after the location.
        kinds = (kind for kind in KINDS if f": {kind}: " in result.reason)
        return CAUSES[next(kinds, "compile")]
    return CAUSES.get(result.stage, CAUSES["compile"])


def refused(error: InputError | ValueError) -> str:
    """Return the rejection token of a candidate that does not compile."""
    return CAUSES["size" if _TOO_LONG in str(error) else "compile"]


def chief(layers: Sequence[Layer]) -> Layer:
    """Return the layer with the most MACs, or the first of those, as the main layer of a program."""
    return max(layers, key=lambda layer: layer.macs)
