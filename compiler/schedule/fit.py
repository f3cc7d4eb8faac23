"""A schedule made to fit: prefetching is what gives way."""

from dataclasses import replace

from compiler.codegen.network import Code, generate
from compiler.lower.lower import Lowered
from compiler.memory.plan import MemoryFullError
from compiler.schedule.schedule import Schedule
from hw.config import MlaConfig


def fit(
    config: MlaConfig, lowered: Lowered, schedule: Schedule, numbers: tuple[int, int]
) -> tuple[Schedule, Code]:
    """The schedule with as much prefetching as the machine's memories hold, and its code.

    Raises
    ------
    MemoryFullError
        It does not fit without any.
    """
    while True:
        try:
            return schedule, generate(config, lowered, schedule, numbers)
        except MemoryFullError as error:
            layers = dict(schedule.layers)
            ahead = [layer for layer in error.layers if layers[layer].prefetch]
            if not ahead:
                raise
            for layer in ahead:
                layers[layer] = replace(layers[layer], prefetch=layers[layer].prefetch // 2)
            schedule = replace(schedule, layers=layers)
