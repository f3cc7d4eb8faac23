"""Prompt tokens for answer types and rejection reasons."""

from collections.abc import Sequence
from enum import StrEnum

from compiler.layers.base import Layer
from compiler.profile.measurement import Rejected
from compiler.validate.errors import KINDS
from hw.errors import InputError


class Ask(StrEnum):
    """Answer type that a prompt can request."""

    SCHEDULE = "ask schedule"
    EDITS = "ask edits"
    PROGRAM = "ask program"


#: Measurement stages at which a candidate may fail, and outcomes of measured candidates that are not improvements.
_STAGES = ("compile", "time", "trap", "same")
#: Rejection tokens by cause; each error kind of the validator has its own token.
CAUSES = {cause: f"rejected {cause}" for cause in (*_STAGES, *KINDS)}
TOKENS = (*(ask.value for ask in Ask), *CAUSES.values())
#: Part of the message about programs that exceed the instruction store.
_TOO_LONG = "the store has"


def rejected(result: Rejected) -> str:
    """Return the rejection token of a candidate."""
    if result.stage == "validate":
        # The message of a ValidationError contains the error kind after the location.
        kinds = (kind for kind in KINDS if f": {kind}: " in result.reason)
        return CAUSES[next(kinds, "compile")]
    return CAUSES.get(result.stage, CAUSES["compile"])


def refused(error: InputError | ValueError) -> str:
    """Return the rejection token of a candidate that does not compile."""
    return CAUSES["size" if _TOO_LONG in str(error) else "compile"]


def chief(layers: Sequence[Layer]) -> Layer:
    """Return the main layer of a program: the first one with the maximum number of MACs."""
    return max(layers, key=lambda layer: layer.macs)
