"""A way to carry out two layers together."""

from dataclasses import dataclass

from compiler.schedule.schedule import LayerSchedule


@dataclass(frozen=True)
class Fused:
    """A way to carry out a pair, with its estimated cycles.

    Parameters
    ----------
    estimate : float
        Cycles of both.
    first, second : LayerSchedule
        How each is carried out.
    start : float
        Cycles of the estimate until the first weights are there: fewer if LOAD is ahead of the layer before.
    """

    estimate: float
    first: LayerSchedule
    second: LayerSchedule
    start: float = 0.0
