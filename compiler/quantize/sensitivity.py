"""Sensitivity analysis: the error of each quantized node, and the activations that limit the quality of the outputs."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph
from compiler.ir.tensor import Tensor
from compiler.options import AccuracyBudget
from compiler.quantize.plan import ALL
from compiler.quantize.ranges import Sample, SoftmaxRange, stored
from compiler.quantize.report import (
    ChosenInt16,
    NodeLimit,
    OutputErrors,
    OutputLimits,
    OutputReport,
    QuantizationReport,
    WideQuality,
)
from compiler.reference import Kernels, evaluate
from compiler.reference.evaluate import run_node
from hw.errors import InputError

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


#: Signal-to-noise ratio of an output, in dB, below which the nodes that limit it are determined.
_SUFFICIENT_DB = 30.0
#: Maximum number of activations whose effect on the output is measured, and maximum number tried as int16.
_CANDIDATES, _TRIED = 24, 6
#: Number of samples on which int16 is tried, and on which results are chosen for a budget in decibels.
_TRIED_SAMPLES, _CHOSEN_SAMPLES = 4, 64
#: An activation is tried as int16 only if it causes at least this share of the output's noise.
_SMALLEST_SHARE = 0.02


def limited_output(report: QuantizationReport) -> OutputReport | None:
    """Return the output with the lowest signal-to-noise ratio if it is too low; None for random samples."""
    low = [
        each
        for each in report.outputs
        if each.quantized and each.sqnr_db is not None and each.sqnr_db < _SUFFICIENT_DB
    ]
    return None if report.random or not low else min(low, key=lambda each: each.sqnr_db or 0.0)


#: Returns the quantized graph in which the results of given nodes are int16, and its tensors by name of the float
#: tensor that they represent.
QuantizedWith = Callable[[Sequence[str]], tuple[Graph, Mapping[str, Tensor]]]


def limits_of(
    output: OutputReport,
    graph: Graph,
    samples: Sequence[Sample],
    quantized_with: QuantizedWith,
    rounding: Kernels,
) -> OutputLimits:
    """Return the nodes that limit the quality of an output, and its quality with their results in int16.

    Parameters
    ----------
    output : OutputReport
        The output to analyse.
    graph : Graph
        The float graph.
    samples : list of Sample
        Samples, of which the first ones are used.
    quantized_with : QuantizedWith
        Quantizes the graph with the results of additional nodes in int16.
    rounding : Kernels
        Kernels whose rounding is used for quantized graphs.
    """
    samples = samples[:_TRIED_SAMPLES]
    shares = _noise_shares(output.name, graph, samples[0], *quantized_with(()), rounding)
    worst = tuple(each.node for each in shares[:_TRIED] if each.share >= _SMALLEST_SHARE)
    tried = []
    for nodes in (worst, (ALL,)):
        if nodes:
            errors_of = _noise_of(output.name, graph, quantized_with(nodes)[0], samples, rounding)
            tried.append(WideQuality(nodes, errors_of.sqnr_db))
    return OutputLimits(output.name, tuple(shares), tuple(tried))


def _noise_shares(
    output: str,
    graph: Graph,
    sample: Sample,
    quantized: Graph,
    integers: Mapping[str, Tensor],
    rounding: Kernels,
) -> list[NodeLimit]:
    """Return the noise of an output from each of the activations that are likely to limit it, in descending order.

    The noise of each activation is propagated separately through the float graph. Candidates are the int8 activations
    with the largest relative rounding errors, and the last ones, whose noise no later layer averages.
    """
    wanted = evaluate(graph, sample, keep=True)
    whole = _noise_of(output, graph, quantized, [sample], rounding)
    rounded: dict[str, NDArray] = {}
    errors: dict[str, float] = {}
    for name, tensor in integers.items():
        q, exact = tensor.quantization, wanted[name]
        if q is None or tensor.dtype != "int8" or not _rounds(graph, name) or not np.isfinite(exact).all():
            continue
        rounded[name] = np.asarray(q.dequantized(stored(exact, q)).astype(np.float32))
        power = float(np.square(exact, dtype=np.float64).sum())
        errors[name] = float(np.square(rounded[name] - exact, dtype=np.float64).sum()) / (power or 1.0)
    order = [name for node in graph for name in node.outputs if name in errors]
    noisy = _first_of_groups(graph, sorted(errors, key=lambda name: -errors[name]))
    last = _first_of_groups(graph, reversed(order))
    candidates = dict.fromkeys((*noisy[: _CANDIDATES // 2], *reversed(last[: _CANDIDATES // 2])))
    shares = []
    for name in candidates:
        found = _propagated(graph, wanted, name, rounded[name])[output]
        noise = float(np.square(found - wanted[output], dtype=np.float64).sum())
        producer = graph.producer(name)
        shares.append(NodeLimit(producer.name if producer else name, noise / (whole.noise or 1.0)))
    return sorted(shares, key=lambda each: -each.share)


def check_labels(graph: Graph, samples: Sequence[Sample], labels: Sequence[int]) -> None:
    """Raise InputError unless a graph has one output, and its samples as many valid labels."""
    if len(graph.sample_outputs) != 1:
        raise InputError(
            "accuracy_budget: a budget in labels needs a model with one output, "
            f"not {len(graph.sample_outputs)}"
        )
    if len(labels) != len(samples):
        raise InputError(
            f"accuracy_budget: {len(samples):,} samples need as many labels, not {len(labels):,}"
        )
    classes = graph.tensors[graph.sample_outputs[0]].elements
    outside = [label for label in labels if not 0 <= label < classes]
    if outside:
        raise InputError(f"accuracy_budget: labels must be 0..{classes - 1}, not {outside[0]}")


@dataclass(frozen=True)
class _Quality:
    """Quality of a quantized graph: its worst output, and by how much it misses the budget, in dB or labels."""

    output: str
    sqnr_db: float | None
    missing: float


def choose_int16(
    graph: Graph,
    samples: Sequence[Sample],
    quantized_with: QuantizedWith,
    rounding: Kernels,
    budget: AccuracyBudget | None = None,
) -> ChosenInt16:
    """Choose the activations that become int16 so that the outputs meet an accuracy budget.

    Activations are chosen in the order of the noise that they cause in the worst output, as few of them as meet the
    budget, found by bisection if all those that cause noise do. Otherwise, each number of them is tried, and the best
    one is chosen if it improves the outputs; if it does not meet the budget, the next ones are searched for. If none
    of these improves the outputs, the other activations, each of which causes little noise, are tried together.

    Parameters
    ----------
    graph : Graph
        The float graph.
    samples : list of Sample
        Samples; a budget in decibels is checked on the first ones.
    quantized_with : QuantizedWith
        Quantizes the graph with the results of additional nodes in int16.
    rounding : Kernels
        Kernels whose rounding is used for quantized graphs.
    budget : AccuracyBudget or None
        Permitted loss of accuracy relative to the float graph: the lowest signal-to-noise ratio of an output in dB, or
        the largest number of samples that the float graph labels rightly and the quantized graph does not. Default:
        30 dB.

    Raises
    ------
    InputError
        A budget in labels does not fit the outputs or the samples.
    """
    labels = budget.labels if budget and budget.worse is not None else ()
    if labels:
        check_labels(graph, samples, labels)
    checked = list(samples if labels else samples[:_CHOSEN_SAMPLES])
    exact = [evaluate(graph, sample) for sample in checked]

    def quality(nodes: Sequence[str]) -> _Quality:
        made, _ = quantized_with(nodes)
        found = [evaluate(made, sample, rounding=rounding) for sample in checked]
        errors = {name: OutputErrors() for name in graph.sample_outputs}
        for wanted, got in zip(exact, found, strict=True):
            for name, each in errors.items():
                each.add(wanted[name], got[name])
        ratios = {name: each.sqnr_db for name, each in errors.items() if each.sqnr_db is not None}
        worst = min(ratios, key=lambda name: ratios[name], default=graph.sample_outputs[0])
        ratio = ratios.get(worst)
        if budget is None or budget.worse is None:
            least = _SUFFICIENT_DB if budget is None or budget.sqnr_db is None else budget.sqnr_db
            return _Quality(worst, ratio, 0.0 if ratio is None else least - ratio)
        lost = sum(
            int(wanted[worst].argmax()) == label != int(got[worst].argmax())
            for wanted, got, label in zip(exact, found, labels, strict=True)
        )
        return _Quality(worst, ratio, lost - budget.worse)

    chosen: list[str] = []
    before = now = quality(())
    while now.missing > 0:
        shares = _noise_shares(now.output, graph, samples[0], *quantized_with(chosen), rounding)
        more = [each.node for each in shares if each.share >= _SMALLEST_SHARE and each.node not in chosen]
        found = quality([*chosen, *more]) if more else now
        if more and found.missing > 0:
            # More results in int16 are not always better, since their weights are rounded anew.
            fewer = [quality([*chosen, *more[:count]]) for count in range(1, len(more))]
            found, count = min(
                ((each, count) for count, each in enumerate((*fewer, found), 1)),
                key=lambda each: (max(each[0].missing, 0.0), each[1]),
            )
            more = more[:count]
        if found.missing >= now.missing:
            others = (each.node for each in shares), _rounded_results(graph, quantized_with(chosen)[1])
            more = [name for name in dict.fromkeys(itertools.chain(*others)) if name not in chosen]
            found = quality([*chosen, *more])
            if found.missing > 0:
                break
        if found.missing <= 0:
            first, last = 1, len(more)
            while first < last:
                middle = (first + last) // 2
                tried = quality([*chosen, *more[:middle]])
                if tried.missing <= 0:
                    last, found = middle, tried
                else:
                    first = middle + 1
            more = more[:last]
        chosen, now = [*chosen, *more], found
    return ChosenInt16(tuple(chosen), before.sqnr_db, now.sqnr_db, now.missing <= 0)


def _rounded_results(graph: Graph, integers: Mapping[str, Tensor]) -> list[str]:
    """Return the nodes and inputs whose results are rounded to int8, in the order of the graph."""
    producers = {name: graph.producer(name) for name, each in integers.items() if each.dtype == "int8"}
    return [node.name if node else name for name, node in producers.items() if _rounds(graph, name)]


def _first_of_groups(graph: Graph, names: Iterable[str]) -> list[str]:
    """Return the first name of each group, so that many steps of one operation do not displace other nodes."""
    first = {graph.tensors[name].group or name: name for name in reversed(list(names))}
    return list(first.values())[::-1]


def _rounds(graph: Graph, name: str) -> bool:
    """Return True if a tensor is an input or the result of a node that computes, rather than moves, elements."""
    producer = graph.producer(name)
    return producer is None or producer.op not in _EXACT


def _noise_of(
    output: str, graph: Graph, quantized: Graph, samples: Sequence[Sample], rounding: Kernels
) -> OutputErrors:
    errors = OutputErrors()
    for sample in samples:
        wanted, found = evaluate(graph, sample), evaluate(quantized, sample, rounding=rounding)
        errors.add(wanted[output], found[output])
    return errors


def _propagated(
    graph: Graph, values: Mapping[str, NDArray], name: str, changed: NDArray
) -> dict[str, NDArray]:
    """Return the outputs of a float graph if one tensor is changed; only nodes that depend on it are evaluated."""
    new = {name: changed}
    for node in graph:
        if any(each in new for each in node.inputs):
            operands = [_operand(graph.tensors[each], new if each in new else values) for each in node.inputs]
            new |= zip(node.outputs, run_node(graph, node, operands), strict=True)
    return {each: new.get(each, values[each]) for each in graph.outputs}
