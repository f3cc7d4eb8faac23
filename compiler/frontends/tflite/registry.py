"""TFLite's operators as nodes of the graph, one function for each kind.

Every function takes the builder, the operator, its inputs (None where an optional one is absent) and its outputs, whose
tensors carry shape, type and quantization but are not yet part of the graph.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import tflite

from compiler.frontends.build import ACTIVATIONS, GraphBuilder, same_pads
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization, Tensor
from hw.errors import InputError


@dataclass(frozen=True)
class Operator:
    """One operator of a file; `subgraph` gives the file's graphs by their number."""

    name: str
    kind: str
    options: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    subgraph: Callable[[int], Graph]


Converter = Callable[[GraphBuilder, Operator, list[Tensor | None], list[Tensor]], None]
#: By the format's name of the operator.
CONVERTERS: dict[str, Converter] = {}
_Options = TypeVar("_Options")


def converts(*kinds: str) -> Callable[[Converter], Converter]:
    """Enter a function as the converter of operators."""

    def enter(function: Converter) -> Converter:
        CONVERTERS.update(dict.fromkeys(kinds, function))
        return function

    return enter


def options_of(operator: Operator, kind: type[_Options]) -> _Options:
    """The operator's options, as the format's schema has them."""
    options = kind()
    if operator.options is None:
        raise InputError(f"operator {operator.name!r} lacks its options")
    options.Init(operator.options.Bytes, operator.options.Pos)  # type: ignore[attr-defined]
    return options


def given_inputs(operator: Operator, tensors: list[Tensor | None], count: int) -> list[Tensor]:
    """The inputs, none of them absent; at least `count`."""
    given = [t for t in tensors if t is not None]
    if len(given) < count:
        raise InputError(f"operator {operator.name!r} must have {count} inputs, not {len(given)}")
    return given


def _activated(
    build: GraphBuilder,
    operator: Operator,
    op: str,
    inputs: list[Tensor],
    output: Tensor,
    activation: int,
    **attributes: Any,
) -> None:
    """A node, and the activation that is fused into it as a node of its own."""
    name = {v: k for k, v in vars(tflite.ActivationFunctionType).items() if isinstance(v, int)}.get(
        activation, "?"
    ).lower()
    if name not in ACTIVATIONS:
        raise InputError(
            f"operator {operator.name!r}: activation must be one of {', '.join(ACTIVATIONS)}, not {name}"
        )
    limits = ACTIVATIONS[name]
    if limits is None:
        build.node(operator.name, op, inputs, output, **attributes)
        return
    before = build.node(
        operator.name, op, inputs, build.between(output, f"{output.name}:before"), **attributes
    )
    build.node(f"{operator.name}:{name}", "clip", [before], output, low=limits[0], high=limits[1])


def _window(
    operator: Operator, x: Tensor, kernel: tuple[int, int], options: Any, dilations: tuple[int, int] = (1, 1)
) -> tuple[tuple[int, int], tuple[int, int, int, int]]:
    """Strides and pads."""
    strides = (options.StrideH(), options.StrideW())
    if len(x.shape) != 4 or min(*strides, *dilations, *kernel) < 1:
        raise InputError(
            f"operator {operator.name!r}: no window {kernel} by {strides} over shape {list(x.shape)}"
        )
    if options.Padding() == tflite.Padding.VALID:
        return strides, (0, 0, 0, 0)
    (top, bottom), (left, right) = (
        same_pads(size, k, stride, dilation)
        for size, k, stride, dilation in zip(x.shape[1:3], kernel, strides, dilations, strict=True)
    )
    return strides, (top, left, bottom, right)


def _bias(
    build: GraphBuilder, operator: Operator, x: Tensor, weights: Tensor, bias: Tensor, count: int
) -> Tensor:
    """A bias without a quantization of its own has that of the products it is added to."""
    if bias.data is None or bias.shape != (count,):
        raise InputError(
            f"operator {operator.name!r}: its bias must be {count} constants, not shape {list(bias.shape)}"
        )
    if bias.quantization is not None or x.quantization is None or weights.quantization is None:
        return bias
    scales = tuple(
        float(np.float32(x.quantization.scale[0]) * np.float32(s)) for s in weights.quantization.scale
    )
    meaning = Quantization(scales, (0,) * len(scales), 0 if len(scales) > 1 else None)
    return build.constant(f"{bias.name}:scaled", bias.data, meaning)


@converts("CONV_2D")
def _conv(
    build: GraphBuilder, operator: Operator, inputs: list[Tensor | None], outputs: list[Tensor]
) -> None:
    options = options_of(operator, tflite.Conv2DOptions)
    x, weights, *bias = given_inputs(operator, inputs, 2)
    dilations = (options.DilationHFactor(), options.DilationWFactor())
    if len(weights.shape) != 4 or x.shape[-1] % weights.shape[3]:
        raise InputError(
            f"operator {operator.name!r}: weights {list(weights.shape)} do not fit x {list(x.shape)}"
        )
    strides, pads = _window(operator, x, weights.shape[1:3], options, dilations)
    biases = [_bias(build, operator, x, weights, b, weights.shape[0]) for b in bias]
    _activated(
        build, operator, "conv2d", [x, weights, *biases], outputs[0],
        options.FusedActivationFunction(), strides=strides, pads=pads, dilations=dilations,
        groups=x.shape[-1] // weights.shape[3],
    )  # fmt: skip


@converts("DEPTHWISE_CONV_2D")
def _depthwise(
    build: GraphBuilder, operator: Operator, inputs: list[Tensor | None], outputs: list[Tensor]
) -> None:
    options = options_of(operator, tflite.DepthwiseConv2DOptions)
    x, weights, *bias = given_inputs(operator, inputs, 2)
    dilations = (options.DilationHFactor(), options.DilationWFactor())
    if len(weights.shape) != 4 or weights.data is None or weights.shape[3] % x.shape[-1]:
        raise InputError(
            f"operator {operator.name!r}: weights {list(weights.shape)} do not fit x {list(x.shape)}"
        )
    strides, pads = _window(operator, x, weights.shape[1:3], options, dilations)
    window = {"strides": strides, "pads": pads, "dilations": dilations}
    q = weights.quantization
    if weights.shape[3] == x.shape[-1]:
        op, data, axis = "depthwise_conv2d", weights.data[0], 2
    else:  # several outputs for each channel: a grouped convolution
        op, data, axis = "conv2d", weights.data.transpose(3, 1, 2, 0), 0
        window |= {"groups": x.shape[-1]}
    moved = None if q is None else Quantization(q.scale, q.zero_point, None if q.whole else axis)
    filters = build.constant(f"{weights.name}:filters", data, moved)
    biases = [_bias(build, operator, x, weights, b, weights.shape[3]) for b in bias]
    _activated(
        build, operator, op, [x, filters, *biases], outputs[0],
        options.FusedActivationFunction(), **window,
    )  # fmt: skip


@converts("FULLY_CONNECTED")
def _dense(
    build: GraphBuilder, operator: Operator, inputs: list[Tensor | None], outputs: list[Tensor]
) -> None:
    options = options_of(operator, tflite.FullyConnectedOptions)
    x, weights, *bias = given_inputs(operator, inputs, 2)
    if len(weights.shape) != 2 or x.elements % weights.shape[1]:
        raise InputError(
            f"operator {operator.name!r}: weights {list(weights.shape)} do not fit x {list(x.shape)}"
        )
    rows = (x.elements // weights.shape[1], weights.shape[1])
    if x.shape != rows and x.shape[-1] != weights.shape[1]:
        x = build.node(
            f"{operator.name}:rows", "reshape", [x], build.between(x, f"{x.name}:rows", rows), shape=rows
        )
    made, output = (*x.shape[:-1], weights.shape[0]), outputs[0]
    operands = [x, weights, *(_bias(build, operator, x, weights, b, weights.shape[0]) for b in bias)]
    if made == output.shape:
        _activated(build, operator, "dense", operands, output, options.FusedActivationFunction())
        return
    flat = build.between(output, f"{output.name}:rows", made)
    _activated(build, operator, "dense", operands, flat, options.FusedActivationFunction())
    build.node(f"{operator.name}:shape", "reshape", [flat], output, shape=output.shape)


@converts("ADD", "SUB", "MUL")
def _binary(
    build: GraphBuilder, operator: Operator, inputs: list[Tensor | None], outputs: list[Tensor]
) -> None:
    kind = {"ADD": tflite.AddOptions, "SUB": tflite.SubOptions, "MUL": tflite.MulOptions}[operator.kind]
    activation = options_of(operator, kind).FusedActivationFunction() if operator.options is not None else 0
    _activated(
        build, operator, operator.kind.lower(), given_inputs(operator, inputs, 2), outputs[0], activation
    )


@converts("AVERAGE_POOL_2D", "MAX_POOL_2D")
def _pool(
    build: GraphBuilder, operator: Operator, inputs: list[Tensor | None], outputs: list[Tensor]
) -> None:
    options = options_of(operator, tflite.Pool2DOptions)
    (x,) = given_inputs(operator, inputs, 1)
    kernel = (options.FilterHeight(), options.FilterWidth())
    strides, pads = _window(operator, x, kernel, options)
    window: dict[str, Any] = {"kernel": kernel, "strides": strides, "pads": pads}
    if operator.kind == "AVERAGE_POOL_2D":
        window["count_pads"] = False
    op = "avg_pool2d" if operator.kind == "AVERAGE_POOL_2D" else "max_pool2d"
    _activated(build, operator, op, [x], outputs[0], options.FusedActivationFunction(), **window)


@converts("RESHAPE", "SQUEEZE", "EXPAND_DIMS")
def _reshape(
    build: GraphBuilder, operator: Operator, inputs: list[Tensor | None], outputs: list[Tensor]
) -> None:
    x = given_inputs(operator, inputs, 1)[0]
    if x.elements != outputs[0].elements:
        raise InputError(
            f"operator {operator.name!r}: {list(x.shape)} cannot become {list(outputs[0].shape)}"
        )
    build.node(operator.name, "reshape", [x], outputs[0], shape=outputs[0].shape)


@converts("SOFTMAX")
def _softmax(
    build: GraphBuilder, operator: Operator, inputs: list[Tensor | None], outputs: list[Tensor]
) -> None:
    (x,) = given_inputs(operator, inputs, 1)
    beta = float(options_of(operator, tflite.SoftmaxOptions).Beta())
    build.node(operator.name, "softmax", [x], outputs[0], axis=len(x.shape) - 1, beta=beta)


@converts("RELU", "RELU6", "RELU_N1_TO_1")
def _relu(
    build: GraphBuilder, operator: Operator, inputs: list[Tensor | None], outputs: list[Tensor]
) -> None:
    (x,) = given_inputs(operator, inputs, 1)
    limits = ACTIVATIONS[operator.kind.lower()]
    assert limits is not None
    build.node(operator.name, "clip", [x], outputs[0], low=limits[0], high=limits[1])


@converts("LOGISTIC", "TANH", "HARD_SWISH", "EXP")
def _unary(
    build: GraphBuilder, operator: Operator, inputs: list[Tensor | None], outputs: list[Tensor]
) -> None:
    (x,) = given_inputs(operator, inputs, 1)
    op = {"LOGISTIC": "sigmoid"}.get(operator.kind, operator.kind.lower())
    build.node(operator.name, op, [x], outputs[0])


@converts("ELU")
def _elu(build: GraphBuilder, operator: Operator, inputs: list[Tensor | None], outputs: list[Tensor]) -> None:
    (x,) = given_inputs(operator, inputs, 1)
    build.node(operator.name, "elu", [x], outputs[0], alpha=1.0)


@converts("QUANTIZE")
def _quantize(
    build: GraphBuilder, operator: Operator, inputs: list[Tensor | None], outputs: list[Tensor]
) -> None:
    (x,) = given_inputs(operator, inputs, 1)
    build.node(operator.name, "quantize" if x.quantization is None else "requantize", [x], outputs[0])


@converts("DEQUANTIZE")
def _dequantize(
    build: GraphBuilder, operator: Operator, inputs: list[Tensor | None], outputs: list[Tensor]
) -> None:
    (x,) = given_inputs(operator, inputs, 1)
    build.node(operator.name, "dequantize", [x], outputs[0])
