"""Sensitivity analysis: the error of each quantized node, given exact inputs."""

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

#: Number of samples to measure; each is evaluated twice in numpy.
_MEASURED = 2
#: Operators that add no error beyond that of their integer operands.
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
    quantized: Graph,
    integers: Mapping[str, Tensor],
    samples: Sequence[Sample],
    rounding: Kernels,
) -> QuantizationReport:
    """Return the report with `node` and `node_sqnr_db` of its tensors filled in.

    Parameters
    ----------
    report : QuantizationReport
        Report to complete; errors are not measured if its samples were random.
    floors : SoftmaxRange
        Floors of the float graph's tensors; values below the floor are treated as equal to it.
    quantized : Graph
        The quantized graph.
    integers : dict
        Tensors of the quantized graph, by name of the float tensor that they represent.
    samples : list of Sample
        Calibration samples, of which the first ones are used.
    rounding : Kernels
        Kernels whose rounding is used for the quantized graph.
    """
    graph, errors = floors.graph, defaultdict[str, OutputErrors](OutputErrors)
    reported = {each.name for each in report.tensors}
    floats = {tensor.name: name for name, tensor in integers.items() if name in reported}
    for sample in samples[: 0 if report.random else _MEASURED]:
        wanted = evaluate(graph, sample, keep=True)
        wanted = {name: floors.cut(name, each) for name, each in wanted.items()}
        _add_errors(errors, quantized, floats, wanted, sample, rounding)
    producers = {name: graph.producer(name) for name in integers}
    tensors = []
    for each in report.tensors:
        producer, own = producers.get(each.name), errors.get(each.name)
        node = producer.name if producer else ""
        tensors.append(replace(each, node=node, node_sqnr_db=own.sqnr_db if own else None))
    return replace(report, tensors=tuple(tensors))


def _add_errors(
    errors: dict[str, OutputErrors],
    quantized: Graph,
    floats: Mapping[str, str],
    wanted: Sample,
    sample: Sample,
    rounding: Kernels,
) -> None:
    """Run each node on the quantized exact inputs of one sample, and accumulate the errors of its outputs."""
    values: dict[str, NDArray] = dict(sample)
    for node in quantized:
        operands = [_operand(quantized.tensors[name], values) for name in node.inputs]
        for name, found in zip(
            node.outputs, run_node(quantized, node, operands, rounding=rounding), strict=True
        ):
            q, float_name = quantized.tensors[name].quantization, floats.get(name)
            values[name] = found
            if q is None or float_name is None:
                continue
            if node.op not in _EXACT:
                errors[float_name].add(wanted[float_name], q.dequantized(found))
            values[name] = np.asarray(stored(wanted[float_name], q, found.dtype.name))


def _operand(tensor: Tensor, values: Mapping[str, NDArray]) -> NDArray:
    return values[tensor.name] if tensor.data is None else tensor.data
