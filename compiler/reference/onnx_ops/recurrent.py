"""ONNX's recurrent operators RNN, GRU and LSTM in float32, with all attributes and optional inputs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compiler.reference.onnx_ops.registry import Array, OnnxNodeSpec, computes
from hw.errors import InputError, shown

#: Gates of each operator in the order of their weights; the names are those of ONNX's formulas.
GATES = {"RNN": "h", "GRU": "zrh", "LSTM": "iofc"}
#: Names of the directions by the attribute `direction`.
DIRECTIONS = {"forward": ("forward",), "reverse": ("reverse",), "bidirectional": ("forward", "reverse")}
#: Default activations of one direction.
_DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
#: Activations that take coefficients, with their default values; None: the coefficient must be given.
_COEFFICIENTS: dict[str, dict[str, float | None]] = {
    "Affine": {"alpha": None, "beta": None},
    "ScaledTanh": {"alpha": None, "beta": None},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "LeakyRelu": {"alpha": 0.01},
    "ThresholdedRelu": {"alpha": 1.0},
    "Elu": {"alpha": 1.0},
}


@dataclass(frozen=True)
class Activation:
    """An activation function of a recurrent operator.

    Parameters
    ----------
    name : str
        Name of the function, as in ONNX's description of the operators.
    coefficients : dict
        Values of alpha and beta, if the function takes them.
    """

    name: str
    coefficients: dict[str, float] = field(default_factory=dict)

    def __call__(self, x: Array) -> Array:
        """Return the function of float32 values."""
        return np.asarray(_FUNCTIONS[self.name](x, **self.coefficients), np.float32)


_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "Relu": lambda x: np.maximum(x, 0),
    "Tanh": np.tanh,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "Softplus": lambda x: np.logaddexp(0, x),
    "Affine": lambda x, alpha, beta: alpha * x + beta,
    "ScaledTanh": lambda x, alpha, beta: alpha * np.tanh(beta * x),
    "HardSigmoid": lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
    "LeakyRelu": lambda x, alpha: np.where(x >= 0, x, alpha * x),
    "ThresholdedRelu": lambda x, alpha: np.where(x > alpha, x, 0),
    "Elu": lambda x, alpha: np.where(x >= 0, x, alpha * np.expm1(np.minimum(x, 0))),
}


def activations_of(op: str, attributes: Mapping[str, Any], directions: int) -> list[tuple[Activation, ...]]:
    """Return the activations of each direction.

    The lists of coefficients contain one value for each function that takes such a coefficient, in order; functions
    beyond the end of a list have default values.

    Parameters
    ----------
    op : str
        RNN, GRU or LSTM.
    attributes : dict
        Attributes of the node as Python values.
    directions : int
        Number of directions of the node.

    Raises
    ------
    InputError
        An activation does not exist, the number of activations is wrong, or a coefficient is missing.
    """
    defaults = _DEFAULTS[op]
    given = tuple(attributes.get("activations") or [name.encode() for name in defaults * directions])
    if len(given) != len(defaults) * directions or not all(isinstance(each, bytes) for each in given):
        raise InputError(
            f"must have the names of {len(defaults) * directions} activations, not {shown(given)}"
        )
    names = {name.lower(): name for name in _FUNCTIONS}
    left = {key: list(_numbers(attributes, f"activation_{key}")) for key in ("alpha", "beta")}
    functions: list[Activation] = []
    for each in given:
        name = names.get(each.decode(errors="replace").lower())
        if name is None:
            raise InputError(f"activations must be some of {', '.join(_FUNCTIONS)}, not {shown(each)}")
        coefficients: dict[str, float] = {}
        for key, default in _COEFFICIENTS.get(name, {}).items():
            value = left[key].pop(0) if left[key] else default
            if value is None:
                raise InputError(f"activation {name} must have activation_{key}, which has no default")
            coefficients[key] = float(value)
        functions.append(Activation(name, coefficients))
    count = len(defaults)
    return [tuple(functions[i * count : (i + 1) * count]) for i in range(directions)]


def _numbers(attributes: Mapping[str, Any], key: str) -> Sequence[float]:
    """Return an attribute that is a list of finite numbers."""
    value = attributes.get(key, ())
    if not isinstance(value, list | tuple) or not all(
        isinstance(each, int | float) and np.isfinite(each) for each in value
    ):
        raise InputError(f"attribute {key} must be finite numbers, not {shown(value)}")
    return value


@computes(*GATES)
def _recurrent(spec: OnnxNodeSpec, inputs: list[Any]) -> Sequence[Array]:
    """Compute all outputs of a recurrent operator; sequences may have different lengths."""
    x, w, r, *optional = inputs
    b, lengths, h, c, p = (optional + [None] * 5)[:5]
    names = DIRECTIONS[spec.text("direction", "forward", *DIRECTIONS)]
    first = bool(spec.get("layout", 0))
    if first:
        x = np.swapaxes(x, 0, 1)
        h, c = (each if each is None else np.swapaxes(each, 0, 1) for each in (h, c))
    steps, batch, _ = x.shape
    size, count = r.shape[-1], len(names)
    counts = np.full(batch, steps) if lengths is None else np.asarray(lengths)
    if counts.shape != (batch,) or ((counts < 0) | (counts > steps)).any():
        raise InputError(f"sequence_lens must be {batch} numbers within 0..{steps}")
    zeros = np.zeros((count, batch, size), np.float32)
    states = [zeros if each is None else each for each in ((h, c) if spec.op == "LSTM" else (h,))]
    ys, lasts = np.zeros((steps, count, batch, size), np.float32), list[list[Array]]()
    for i, functions in enumerate(activations_of(spec.op, spec.attributes, count)):
        cell = _Cell(spec, w[i], r[i], None if b is None else b[i], None if p is None else p[i], functions)
        now = [each[i] for each in states]
        for step in range(steps):
            rows = np.flatnonzero(counts > step)
            at = counts[rows] - 1 - step if names[i] == "reverse" else np.full(len(rows), step)
            new = cell(x[at, rows], *(each[rows] for each in now))
            now = [each.copy() for each in now]
            for each, value in zip(now, new, strict=True):
                each[rows] = value
            ys[at, i, rows] = new[0]
        lasts.append([np.where(counts[:, None] > 0, each, 0) for each in now])
    made = [ys.transpose(2, 0, 1, 3) if first else ys]
    made += [np.stack(each, 1 if first else 0) for each in zip(*lasts, strict=True)]
    return [np.ascontiguousarray(each, np.float32) for each in made]


class _Cell:
    """One step of a recurrent operator in one direction.

    Parameters
    ----------
    spec : OnnxNodeSpec
        Operator and attributes of the node.
    w, r, b, p : float32 arrays, or None for b and p
        Weights (gates * size, inputs) and (gates * size, size), biases (2 * gates * size,), peepholes (3 * size,).
    functions : tuple of Activation
        Activations of the direction.
    """

    def __init__(
        self,
        spec: OnnxNodeSpec,
        w: Array,
        r: Array,
        b: Array | None,
        p: Array | None,
        functions: tuple[Activation, ...],
    ):
        self.w, self.r, self.functions, gates = w, r, functions, len(GATES[spec.op])
        self.gates, self.clip = gates, abs(spec.get("clip", np.inf))
        both = np.zeros(2 * len(w), np.float32) if b is None else b
        self.bias, self.recurrent = both[: len(w)], both[len(w) :]
        self.peepholes = np.zeros((3, r.shape[-1]), np.float32) if p is None else p.reshape(3, -1)
        self.coupled, self.linear = spec.get("input_forget", 0), spec.get("linear_before_reset", 0)
        self.step = {"RNN": self._rnn, "GRU": self._gru, "LSTM": self._lstm}[spec.op]

    def __call__(self, x: Array, *states: Array) -> Sequence[Array]:
        """Return the next hidden state and, for an LSTM, the next cell state, each (batch, size)."""
        return self.step(x @ self.w.T + self.bias, *states)

    def _activated(self, function: Activation, total: Array) -> Array:
        return function(np.clip(total, -self.clip, self.clip))

    def _rnn(self, driven: Array, h: Array) -> Sequence[Array]:
        return (self._activated(self.functions[0], driven + h @ self.r.T + self.recurrent),)

    def _gru(self, driven: Array, h: Array) -> Sequence[Array]:
        size = 2 * h.shape[-1]
        opened = driven[:, :size] + h @ self.r[:size].T + self.recurrent[:size]
        update, reset = np.split(self._activated(self.functions[0], opened), 2, 1)
        if self.linear:
            inner = reset * (h @ self.r[size:].T + self.recurrent[size:])
        else:
            inner = (reset * h) @ self.r[size:].T + self.recurrent[size:]
        new = self._activated(self.functions[1], driven[:, size:] + inner)
        return ((1 - update) * new + update * h,)

    def _lstm(self, driven: Array, h: Array, c: Array) -> Sequence[Array]:
        f, g, last = self.functions
        i, o, forget, new = np.split(driven + h @ self.r.T + self.recurrent, 4, 1)
        i = self._activated(f, i + self.peepholes[0] * c)
        forget = 1 - i if self.coupled else self._activated(f, forget + self.peepholes[2] * c)
        c = forget * c + i * self._activated(g, new)
        return self._activated(f, o + self.peepholes[1] * c) * last(c), c
