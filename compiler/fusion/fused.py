"""A way to carry out two layers together."""

from dataclasses import dataclass

from compiler.schedule.schedule import LayerSchedule


@dataclass(frozen=True)
class Fused:
    """A way to carry out a pair, with its estimated cycles."""

    estimate: float
    first: LayerSchedule
    second: LayerSchedule
