"""What the model is asked for, and why what it said before was refused, as words."""

from collections.abc import Sequence
from enum import StrEnum

from compiler.layers.base import Layer
from compiler.profile.measurement import Rejected
from compiler.validate.errors import KINDS
from hw.errors import InputError


class Ask(StrEnum):
    """Which answer is wanted."""

    SCHEDULE = "ask schedule"
    EDITS = "ask edits"
    PROGRAM = "ask program"


#: Stages of a measurement at which a candidate may end, and what it was if it was measured and is of no use.
_STAGES = ("compile", "time", "trap", "same")
#: What refusals are called: the validator's kinds by their own names.
CAUSES = {cause: f"rejected {cause}" for cause in (*_STAGES, *KINDS)}
WORDS = (*(ask.value for ask in Ask), *CAUSES.values())
#: Of other words in front of the instruction store's size.
_TOO_LONG = "the store has"


def rejected(result: Rejected) -> str:
    """The word for a refused candidate."""
    if result.stage == "validate":
        # The text of a ValidationError: its kind stands behind the place.
        kinds = (kind for kind in KINDS if f": {kind}: " in result.reason)
        return CAUSES[next(kinds, "compile")]
    return CAUSES.get(result.stage, CAUSES["compile"])


def refused(error: InputError | ValueError) -> str:
    """The word for what cannot even be compiled."""
    return CAUSES["size" if _TOO_LONG in str(error) else "compile"]


def chief(layers: Sequence[Layer]) -> Layer:
    """The layer that a program of several is asked about as: the one with most to multiply, the first of those."""
    return max(layers, key=lambda layer: layer.macs)
