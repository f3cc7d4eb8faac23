"""Control flow of a compiled network: the host decides which of its subgraphs runs."""

from collections.abc import Callable, Mapping, Sequence

from numpy.typing import NDArray

from compiler.ir.tensor import Tensor
from compiler.reference.control import Trips, run_control
from compiler.runtime.stages import Body, Control, Stage

Arrays = Mapping[str, NDArray]
#: Runs stages; adds what they make to the values, by name.
Run = Callable[[Sequence[Stage], dict[str, NDArray]], None]


def value_of(tensor: Tensor, values: Arrays) -> NDArray:
    """Contents of a tensor: its own if it is a constant."""
    return values[tensor.name] if tensor.data is None else tensor.data


def run_control_flow(control: Control, values: Arrays, run: Run, trips: Trips) -> dict[str, NDArray]:
    """What a node of control flow makes of values, by name.

    Raises
    ------
    WorkError
        A loop does not end.
    """

    def runner(body: Body) -> Callable[[Sequence[NDArray]], list[NDArray]]:
        def go(inputs: Sequence[NDArray]) -> list[NDArray]:
            inside = dict(zip((tensor.name for tensor in body.inputs), inputs, strict=True))
            run(body.stages, inside)
            return [value_of(tensor, inside) for tensor in body.outputs]

        return go

    operands = [value_of(tensor, values) for tensor in control.operands]
    bodies = [runner(body) for body in control.bodies]
    made = run_control(control.name, control.op, control.attributes, operands, bodies, control.outputs, trips)
    return {tensor.name: array for tensor, array in zip(control.outputs, made, strict=True)}
