"""Pipeline registers: helpers that add named registers of a data path to a module."""

from typing import Any

from amaranth.hdl import Module, Shape, Signal, Value
from amaranth.lib import data


def pipeline_struct(m: Module, name: str, beat: data.View, cycles: int) -> list[data.View]:
    """Delay line of a struct, with all its taps.

    Parameters
    ----------
    m : Module
        Module that takes the registers.
    name : str
        Prefix of the registers' names.
    beat : View
        Struct at the input of the line.
    cycles : int
        Number of registers.

    Returns
    -------
    list of View
        The input, then the output of each register: element i is the input i cycles ago.
    """
    stages = [beat]
    for i in range(cycles):
        stage = Signal(beat.shape(), name=f"{name}_{i + 1}")
        m.d.sync += stage.eq(stages[-1])
        stages.append(stage)
    return stages


def pipeline_domain(m: Module, late: int) -> Any:
    """Domain of assignments that are registered in the pipelined variant and combinational in the other.

    Parameters
    ----------
    m : Module
        Module of the assignments.
    late : int
        1: `m.d.sync`; 0: `m.d.comb`.
    """
    return m.d.sync if late else m.d.comb


def pipeline_delay(m: Module, name: str, value: Value, cycles: int) -> Value:
    """`value` delayed by `cycles` registers named `name`_1, `name`_2, ...; `value` itself for 0."""
    for i in range(cycles):
        value = pipeline_register(m, f"{name}_{i + 1}", value)
    return value


def pipeline_register(m: Module, name: str, value: Value, shape: Shape | None = None) -> Signal:
    """Register that follows `value` one cycle later.

    It has no reset: data that no valid bit announces needs none, and a reset costs routing.

    Parameters
    ----------
    m : Module
        Module that takes the register.
    name : str
        Name of the register.
    value : Value
        Value to register.
    shape : Shape or None
        Shape of the register; that of `value` by default.
    """
    kept = Signal(value.shape() if shape is None else shape, name=name, reset_less=True)
    m.d.sync += kept.eq(value)
    return kept


def enable_register(m: Module, name: str, value: Value, take: Value) -> Signal:
    """Register without reset that loads `value` in cycles with `take` and holds it otherwise."""
    kept = Signal(len(value), name=name, reset_less=True)
    with m.If(take):
        m.d.sync += kept.eq(value)
    return kept
