"""The layer of operators that work element by element."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.identity import identity
from compiler.lower.layer import Drain, Layer


@identity("Spread", "ALL", "CHANNEL", "PIXEL", "SCALAR")
class Spread(StrEnum):
    """How a tensor is laid over another."""

    ALL = "all"  # element by element
    CHANNEL = "channel"  # one number for each channel
    PIXEL = "pixel"  # one number for each pixel
    SCALAR = "scalar"


def laid_over(op: str, b: tuple[int, ...], a: tuple[int, ...]) -> Spread | None:
    """How an operand of one shape is laid over one of another; None if the machine has no way for that operator."""
    padded = (1,) * (len(a) - len(b)) + b
    if padded == a:
        return Spread.ALL
    if len(padded) != len(a):
        return None
    if all(size == 1 for size in padded[:-1]) and padded[-1] == a[-1]:
        return Spread.CHANNEL
    if op == "mul" and all(size == 1 for size in padded):
        return Spread.SCALAR
    if op == "mul" and padded[:-1] == a[:-1] and padded[-1] == 1:
        return Spread.PIXEL
    return None


@identity("ElementwiseLayer", "other", "spread", "stream", "src", "stage", "fields", "table", "drain")
@dataclass(frozen=True, kw_only=True, eq=False)
class ElementwiseLayer(Layer):
    """One FUSE pass over all elements of one or two tensors.

    Parameters
    ----------
    other : str or None
        The second tensor, perhaps a constant.
    spread : Spread
        How it is laid over the first.
    stream : str
        Which of FUSE's streams the second tensor is: b or r.
    src, stage : dict
        Parts of the fuse word beside sources and destination.
    fields : dict
        Other fields of FUSE.
    table : (256,) int16 array or None
        Table it looks up.
    drain : Drain or None
        Parameters of each channel, negatives' among them.
    """

    other: str | None = None
    spread: Spread = Spread.ALL
    stream: str = "b"
    src: dict[str, int] = field(default_factory=dict)
    stage: dict[str, int] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    table: NDArray[np.int16] | None = None
    drain: Drain | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """One or both tensors."""
        return (self.x, *([self.other] if self.other else []))
