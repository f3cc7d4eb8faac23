"""Sensitivity analysis: error added by each quantized node alone."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph
from compiler.ir.tensor import Tensor
from compiler.quantize.ranges import Sample, SoftmaxRange, stored
from compiler.quantize.report import OutputErrors, QuantizationReport
from compiler.reference import Kernels, evaluate
from compiler.reference.evaluate import run_node

#: So many samples: each is evaluated in numpy twice more.
_MEASURED = 2
#: Operators that add no error to that of the integers themselves.
_EXACT = frozenset(
    (
        "quantize",
        "requantize",
        "reshape",
        "transpose",
        "slice",
        "pad",
        "gather",
        "resize_nearest",
        "concat",
        "max_pool2d",
        "reduce_max",
        "reduce_min",
    )
)


def node_sensitivity(
    report: QuantizationReport,
    floors: SoftmaxRange,
    made: Graph,
    integers: Mapping[str, Tensor],
    samples: Sequence[Sample],
    rounding: Kernels,
) -> QuantizationReport:
    """The report with the nodes that make the tensors, and the noise that each adds to exact inputs.

    Parameters
    ----------
    report : QuantizationReport
        Of samples that were given; of made-up ones it is left as it is.
    floors : Floors
        Of the float graph, whose numbers below them do not count.
    made : Graph
        The quantized one.
    integers : dict
        Tensors of the quantized graph, by the name of the float tensor that they stand for.
    samples : list of Sample
        The first of them are taken.
    rounding : Kernels
        Whose rounding.
    """
    graph, errors = floors.graph, defaultdict[str, OutputErrors](OutputErrors)
    reported = {each.name for each in report.tensors}
    floats = {tensor.name: name for name, tensor in integers.items() if name in reported}
    for sample in samples[: 0 if report.random else _MEASURED]:
        wanted = evaluate(graph, sample, keep=True)
        wanted = {name: floors.cut(name, each) for name, each in wanted.items()}
        _add_errors(errors, made, floats, wanted, sample, rounding)
    makers = {name: graph.producer(name) for name in integers}
    tensors = []
    for each in report.tensors:
        maker, own = makers.get(each.name), errors.get(each.name)
        node = maker.name if maker else ""
        tensors.append(replace(each, node=node, alone_db=own.sqnr_db if own else None))
    return replace(report, tensors=tuple(tensors))


def _add_errors(
    errors: dict[str, OutputErrors],
    made: Graph,
    floats: Mapping[str, str],
    wanted: Sample,
    sample: Sample,
    rounding: Kernels,
) -> None:
    """Run every node of one sample on inputs that are as exact as their type has them."""
    values: dict[str, NDArray] = dict(sample)
    for node in made:
        operands = [_operand(made.tensors[name], values) for name in node.inputs]
        for name, found in zip(node.outputs, run_node(made, node, operands, rounding=rounding), strict=True):
            q, float_name = made.tensors[name].quantization, floats.get(name)
            values[name] = found
            if q is None or float_name is None:
                continue
            if node.op not in _EXACT:
                errors[float_name].add(wanted[float_name], q.dequantized(found))
            values[name] = np.asarray(stored(wanted[float_name], q))


def _operand(tensor: Tensor, values: Mapping[str, NDArray]) -> NDArray:
    return values[tensor.name] if tensor.data is None else tensor.data
