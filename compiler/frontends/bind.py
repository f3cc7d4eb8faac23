"""Binding of model inputs to constants."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph, rebuild
from hw.errors import InputError, shown


def bound_value(name: str, value: NDArray, shape: tuple[int, ...], dtype: str) -> NDArray:
    """Return the value of a bound input, broadcast to the input's shape and converted to its type.

    Parameters
    ----------
    name : str
        Name of the input, for error messages.
    value : array
        Scalar for all elements, or array of the input's shape.
    shape, dtype : tuple of int, str
        Shape and numpy type of the input.

    Raises
    ------
    InputError
        The value has a different shape, or contains elements that the type cannot represent exactly.
    """
    if value.shape not in ((), shape):
        raise InputError(
            f"bound input {shown(name)} must be one number or of shape {list(shape)}, not {list(value.shape)}"
        )
    with np.errstate(all="ignore"):
        converted = value.astype(dtype)
        lossless = converted.dtype.kind == "f" or np.array_equal(converted.astype(value.dtype), value)
    if not lossless:
        raise InputError(
            f"bound input {shown(name)} must be {dtype}; {shown(value.reshape(-1)[:4].tolist())} is not"
        )
    return np.ascontiguousarray(np.broadcast_to(converted, shape))


def check_names(inputs: Mapping[str, object] | list[str], bind: Mapping[str, NDArray]) -> None:
    """Check that every bound name is the name of an input.

    Raises
    ------
    InputError
        A name is not the name of an input; the message contains the first such name.
    """
    unknown = [name for name in bind if name not in inputs]
    if unknown:
        raise InputError(
            f"there is no input {shown(unknown[0])}; inputs are {', '.join(map(shown, inputs)) or 'none'}"
        )


def bind_inputs(graph: Graph, bind: Mapping[str, NDArray]) -> Graph:
    """Return a graph in which the bound inputs are replaced by constants.

    Parameters
    ----------
    graph : Graph
        Graph of the model.
    bind : dict
        Values by input name; for a quantized input, the stored integers.

    Raises
    ------
    InputError
        A name is not an input, or a value does not match the shape or type of its input.
    """
    if not bind:
        return graph
    check_names(graph.sample_inputs, bind)
    changed = {
        name: replace(
            graph.tensors[name],
            data=bound_value(name, value, graph.tensors[name].shape, graph.tensors[name].dtype),
        )
        for name, value in bind.items()
    }
    return rebuild(graph, graph, inputs=[name for name in graph.inputs if name not in bind], changed=changed)
