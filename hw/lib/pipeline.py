"""Helpers that add named pipeline registers to a module."""

from typing import Any

from amaranth.hdl import Module, Shape, Signal, Value
from amaranth.lib import data


def pipeline_struct(m: Module, name: str, beat: data.View, cycles: int) -> list[data.View]:
    """Add a delay line for a struct, and return all its taps.

    Parameters
    ----------
    m : Module
        Module that the registers are added to.
    name : str
        Prefix of the registers' names.
    beat : View
        Struct at the input of the line.
    cycles : int
        Number of registers in the line.

    Returns
    -------
    list of View
        The input, followed by the output of each register; element i is the value of the input i cycles earlier.
    """
    stages = [beat]
    for i in range(cycles):
        stage = Signal(beat.shape(), name=f"{name}_{i + 1}")
        m.d.sync += stage.eq(stages[-1])
        stages.append(stage)
    return stages


def pipeline_domain(m: Module, late: int) -> Any:
    """Return the domain of assignments that are registered only in the pipelined variant of a component.

    Parameters
    ----------
    m : Module
        Module that contains the assignments.
    late : int
        1 for the pipelined variant (`m.d.sync`), 0 for the direct variant (`m.d.comb`).
    """
    return m.d.sync if late else m.d.comb


def optional_register(m: Module, name: str, value: Value, late: int) -> Value:
    """Return a `pipeline_register` of `value` in the pipelined variant (`late` = 1), else `value` itself."""
    return pipeline_register(m, name, value) if late else value


def vacancy(valid: Value, leaves: Value, late: int) -> Value:
    """Return a value that is high if a register for one item can accept the next item.

    Parameters
    ----------
    valid : Value
        High if the register holds an item.
    leaves : Value
        High if the item is removed in this cycle; high only while `valid` is high.
    late : int
        If 1, only an empty register accepts an item, so that the timing path begins at a register. If 0, a register
        also accepts an item in the cycle in which its current item is removed.
    """
    return ~valid if late else ~valid | leaves


def vacate(m: Module, valid: Signal, stays: Value, late: int) -> None:
    """Update `valid` of a register that accepts items by `vacancy`, in a cycle in which its item may be removed.

    Parameters
    ----------
    m : Module
        Module of the register.
    valid : Signal
        High if the register holds an item.
    stays : Value
        High if the item is not removed in this cycle.
    late : int
        As for `vacancy`. If 0, nothing is done, because the caller assigns the validity of the next item in the cycle
        in which the item is removed.
    """
    if late:
        m.d.sync += valid.eq(stays)


def pipeline_delay(m: Module, name: str, value: Value, cycles: int) -> Value:
    """Return `value` delayed by `cycles` registers named `name`_1, `name`_2, ...; `value` itself for 0 cycles."""
    for i in range(cycles):
        value = pipeline_register(m, f"{name}_{i + 1}", value)
    return value


def pipeline_register(m: Module, name: str, value: Value, shape: Shape | None = None) -> Signal:
    """Return a register that follows `value` one cycle later.

    The register has no reset, because data that are used only with a valid bit need no reset, and a reset costs
    routing.

    Parameters
    ----------
    m : Module
        Module that the register is added to.
    name : str
        Name of the register.
    value : Value
        Value that the register samples.
    shape : Shape or None
        Shape of the register; by default, the shape of `value`.
    """
    register = Signal(value.shape() if shape is None else shape, name=name, reset_less=True)
    m.d.sync += register.eq(value)
    return register


def enable_register(m: Module, name: str, value: Value, take: Value) -> Signal:
    """Return a register without reset that loads `value` while `take` is high and holds its contents otherwise."""
    register = Signal(len(value), name=name, reset_less=True)
    with m.If(take):
        m.d.sync += register.eq(value)
    return register
