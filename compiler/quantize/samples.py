"""Calibration samples: conversion of the accepted formats, and random samples."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph
from compiler.ir.random_inputs import random_input
from compiler.passes.index_bounds import index_bounds
from hw.errors import InputError

Sample = dict[str, NDArray]
#: An array for each input whose first axis counts samples; or a list of samples, each an array for each input, or the
#: one array of a model with one input.
Calibration = Mapping[str, NDArray] | Sequence[Mapping[str, NDArray] | NDArray]
#: So many samples are made up where none are given.
RANDOM_SAMPLES = 2


def samples_of(graph: Graph, given: Calibration) -> list[Sample]:
    """Convert calibration data to a list of samples.

    Raises
    ------
    InputError
        There are no samples, or they do not fit the inputs of the graph.
    """
    whole = _split(graph, given) if isinstance(given, Mapping) else [_named(graph, each) for each in given]
    if not whole:
        raise InputError("calibration needs at least one sample")
    return [_checked(graph, sample) for sample in whole]


def random_samples(graph: Graph, seed: int, count: int = RANDOM_SAMPLES) -> list[Sample]:
    """Generate random samples: standard normal floats, and integers within the graph's bounds."""
    rng, places = np.random.default_rng(seed), index_bounds(graph)
    return [
        {name: random_input(rng, graph.tensors[name], places) for name in graph.inputs} for _ in range(count)
    ]


def _split(graph: Graph, given: Mapping[str, NDArray]) -> list[Sample]:
    """Arrays whose first axis counts samples, apart."""
    arrays = {name: np.asarray(array) for name, array in given.items()}
    counts = {len(array) if array.ndim else 0 for array in arrays.values()}
    if len(counts) != 1:
        raise InputError(
            f"calibration: all inputs of {graph.name!r} must have as many samples, not {sorted(counts)}"
        )
    return [{name: array[i] for name, array in arrays.items()} for i in range(counts.pop())]


def _named(graph: Graph, sample: Mapping[str, NDArray] | NDArray) -> Sample:
    if isinstance(sample, Mapping):
        return dict(sample)
    if len(graph.inputs) != 1:
        raise InputError(f"calibration: a sample must name the inputs {', '.join(graph.inputs)}")
    return {graph.inputs[0]: np.asarray(sample)}


def _checked(graph: Graph, sample: Sample) -> Sample:
    """A sample in the shapes of the inputs, whose own leading 1 may be left out."""
    if sample.keys() != set(graph.inputs):
        raise InputError(
            f"calibration: inputs must be {', '.join(graph.inputs)}, not {', '.join(sample) or 'none'}"
        )
    out = {}
    for name in graph.inputs:
        tensor, array = graph.tensors[name], np.asarray(sample[name])
        shapes = (tensor.shape, tensor.shape[1:] if tensor.shape[:1] == (1,) else tensor.shape)
        if array.shape not in shapes or array.dtype != tensor.dtype:
            raise InputError(
                f"calibration: input {name!r} must be {tensor.dtype}{list(tensor.shape)}, not "
                f"{array.dtype}{list(array.shape)}"
            )
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise InputError(f"calibration: input {name!r} must be numbers, not NaN")
        out[name] = array.reshape(tensor.shape)
    return out
