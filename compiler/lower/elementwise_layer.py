"""The layer of operators that work element by element."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.lower.layer import Drain, Layer


class Spread(StrEnum):
    """How a tensor is laid over another."""

    ALL = "all"  # element by element
    CHANNEL = "channel"  # one number for each channel
    PIXEL = "pixel"  # one number for each pixel
    SCALAR = "scalar"


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
