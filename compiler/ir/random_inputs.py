"""Random values for the inputs of a model."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from compiler.ir.tensor import Quantization, Tensor
from hw.errors import InputError

_ONE = Quantization((1.0,), (0,))


def random_input(rng: np.random.Generator, tensor: Tensor, places: Mapping[str, int]) -> NDArray:
    """Generate a random value for an input.

    Floats are standard normal. Integers that are indices are below their bound (`places`, by name of the input). Other
    integers of 8 and 16 bits and quantized ones span their type, as images and audio do; wider ones are 0 or 1, as
    masks and counts are.

    Raises
    ------
    InputError
        The input does not fit in memory.
    """
    dtype = np.dtype(tensor.dtype)
    try:
        if dtype.kind == "f":
            return rng.standard_normal(tensor.shape).astype(dtype)
        if dtype.kind == "b":
            return rng.integers(0, 2, tensor.shape).astype(dtype)
        limits = np.iinfo(dtype)
        plain = dtype.itemsize > 2 and tensor.quantization in (None, _ONE)
        end = places.get(tensor.name, 2 if plain else None)
        if end is not None:
            return rng.integers(0, min(end - 1, limits.max), tensor.shape, dtype, endpoint=True)
        return rng.integers(limits.min, limits.max, tensor.shape, dtype, endpoint=True)
    except MemoryError:
        raise InputError(
            f"input {tensor.name!r} of {tensor.elements:,} elements does not fit in memory"
        ) from None
