"""The naive schedule: one operator after the other, each from DRAM and back."""

from collections.abc import Iterable

from compiler.lowering.lower import LoweredNetwork
from compiler.schedule.schedule import LayerSchedule, Schedule

#: In one piece and a program of its own, nothing beside it or ahead of it.
PLAIN = LayerSchedule(
    x_buffers=1, w_buffers=1, y_buffers=1, acc_buffers=1, param_buffers=1, prefetch=0, on_chip=False
)


def naive_schedule(stages: Iterable[LoweredNetwork]) -> Schedule:
    """Baseline of searches: each operator by itself, from DRAM to DRAM.

    Parameters
    ----------
    stages : iterable of LoweredNetwork
        All layers of a model, without fusions.
    """
    return Schedule((), {layer.name: PLAIN for stage in stages for layer in stage.layers})
