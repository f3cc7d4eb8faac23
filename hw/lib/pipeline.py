"""Registers of data paths."""

from typing import Any

from amaranth.hdl import Module, Shape, Signal, Value
from amaranth.lib import data


def pipeline_struct(m: Module, name: str, beat: data.View, cycles: int) -> list[data.View]:
    """A struct at its input and after each of `cycles` registers."""
    stages = [beat]
    for i in range(cycles):
        stage = Signal(beat.shape(), name=f"{name}_{i + 1}")
        m.d.sync += stage.eq(stages[-1])
        stages.append(stage)
    return stages


def pipeline_domain(m: Module, late: int) -> Any:
    """Where assignments go that take a cycle with `late` and none without."""
    return m.d.sync if late else m.d.comb


def pipeline_delay(m: Module, name: str, value: Value, cycles: int) -> Value:
    """`value` after a few registers."""
    for i in range(cycles):
        value = pipeline_register(m, f"{name}_{i + 1}", value)
    return value


def pipeline_register(m: Module, name: str, value: Value, shape: Shape | None = None) -> Signal:
    """Register of a data path: without reset, which only costs there."""
    kept = Signal(value.shape() if shape is None else shape, name=name, reset_less=True)
    m.d.sync += kept.eq(value)
    return kept


def enable_register(m: Module, name: str, value: Value, take: Value) -> Signal:
    """Register of a data path that is loaded with `take`."""
    kept = Signal(len(value), name=name, reset_less=True)
    with m.If(take):
        m.d.sync += kept.eq(value)
    return kept
