"""Registry of ONNX operators implemented for the host, with their cost estimates."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from hw.errors import InputError, shown

Array = NDArray[Any]


@dataclass(frozen=True)
class Asked:
    """A node as its file has it.

    Parameters
    ----------
    op : str
        Operator.
    version : int
        Of the set of operators that it is one of.
    attributes : dict
        Lists as tuples or lists, text as bytes.
    outputs : int
        How many of its outputs are wanted, counted from the first.
    """

    op: str
    version: int
    attributes: Mapping[str, Any]
    outputs: int = 1

    def get(self, key: str, default: Any) -> Any:
        """An attribute, or what stands for it where it is left out."""
        return self.attributes.get(key, default)

    def text(self, key: str, default: str, *choices: str) -> str:
        """An attribute that is one of several texts; any text if there are no choices."""
        value = self.attributes.get(key, default.encode())
        value = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        if choices and value not in choices:
            raise InputError(f"attribute {key} must be one of {', '.join(choices)}, not {shown(value)}")
        return value


#: From a node and its inputs, None where one is left out, to its outputs.
Function = Callable[[Asked, list[Any]], Sequence[Array]]
_FUNCTIONS: dict[str, tuple[Function, Callable[[Asked], bool]]] = {}


def computes(*ops: str, when: Callable[[Asked], bool] = lambda _: True) -> Callable[[Function], Function]:
    """Enter a function as that which computes operators, or those of their nodes of which `when` is true."""

    def enter(function: Function) -> Function:
        _FUNCTIONS.update(dict.fromkeys(ops, (function, when)))
        return function

    return enter


def own(asked: Asked) -> Function | None:
    """The implementation of a node's operator; None if ONNX's reference is used."""
    function, when = _FUNCTIONS.get(asked.op, (None, None))
    return function if when is not None and when(asked) else None
