"""Post-training quantization of a float32 graph and its subgraphs to operators on int8 and int16."""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from compiler.ir.graph import Graph, rebuild
from compiler.ir.tensor import Quantization, Tensor
from compiler.lowering.partition import BOUNDARY_REASON
from compiler.options import AccuracyBudget
from compiler.passes import simplify
from compiler.quantize.plan import (
    ALL,
    AUTO,
    EDGE_INSIDE,
    FIXED,
    LAYOUT,
    WEIGHTED,
    Sharing,
    accumulated,
    int16_nodes,
    is_float,
    keeps_blocks,
    kept_float,
    names_in,
    obstacle,
    prepared,
    saturations,
    without_blocks,
    without_hybrids,
)
from compiler.quantize.ranges import (
    Calibration,
    ChannelMeans,
    RangeChoice,
    RangeRecorder,
    Sample,
    SoftmaxRange,
    choose,
    power_of_two,
    samples_of,
    with_states,
)
from compiler.quantize.report import OutputErrors, QuantizationReport, TensorReport, output_reports
from compiler.quantize.rewrite import Rewriter
from compiler.quantize.sensitivity import choose_int16, limited_output, limits_of, node_sensitivity
from compiler.reference import Kernels, evaluate
from hw.errors import InputError

#: Maximum number of recorded runs of a subgraph; the recorded runs are evenly distributed over all runs.
_MAX_RUNS = 64

#: Function that quantizes a subgraph with samples of its inputs.
Quantize = Callable[[Graph, list[Sample]], tuple[Graph, QuantizationReport]]


@dataclass
class Runs:
    """Recorded inputs of the runs of a subgraph.

    Parameters
    ----------
    samples : list of Sample
        Inputs of the recorded runs.
    count : int
        Number of runs so far, including those that are not recorded.
    step : int
        Every `step`-th run is recorded.
    """

    samples: list[Sample] = field(default_factory=list)
    count: int = 0
    step: int = 1

    def add(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Add a run; a run with non-finite inputs is counted but not recorded."""
        finite = all(np.isfinite(array).all() for array in inputs.values() if array.dtype.kind == "f")
        if finite and self.count % self.step == 0:
            self.samples.append({name: np.array(array) for name, array in inputs.items()})
        self.count += 1
        if len(self.samples) > _MAX_RUNS:
            self.samples, self.step = self.samples[::2], self.step * 2


class SubgraphRecorder:
    """Records the inputs of all executed subgraphs; an instance is the `on_subgraph` callback of `evaluate`."""

    def __init__(self) -> None:
        self._runs: dict[int, Runs] = {}

    def __call__(self, graph: Graph, inputs: Mapping[str, np.ndarray]) -> None:
        """Record a run of a subgraph."""
        self._runs.setdefault(id(graph), Runs()).add(inputs)

    @property
    def runs(self) -> int:
        """Total number of runs of all subgraphs."""
        return sum(each.count for each in self._runs.values())

    def samples(self, graph: Graph) -> list[Sample]:
        """Return the recorded inputs of a subgraph."""
        return self._runs.get(id(graph), Runs()).samples


def quantize_bodies(
    graph: Graph, watched: SubgraphRecorder, quantize: Quantize, wanted: Callable[[Graph], bool]
) -> tuple[Graph, list[QuantizationReport], dict[str, str]]:
    """Quantize the subgraphs of a graph.

    Parameters
    ----------
    graph : Graph
        Graph whose nodes may have subgraphs.
    watched : SubgraphRecorder
        Recorded inputs of the subgraphs.
    quantize : function
        Quantizes a subgraph, given samples of its inputs.
    wanted : function
        Returns True for a subgraph that is to be quantized.

    Returns
    -------
    graph, reports, reasons
        The new graph; the reports of the quantized subgraphs; and, for each node in a subgraph that was never executed,
        the reason why it is not quantized.
    """
    reports: list[QuantizationReport] = []
    reasons: dict[str, str] = {}

    def quantized(body: Graph) -> Graph:
        if not wanted(body):
            return body
        samples = watched.samples(body)
        if not samples:
            reasons.update({node.name: "not executed by any calibration sample" for _, node in body.walk()})
            return body
        result, report = quantize(body, samples)
        reports.append(report)
        return result

    if not any(node.bodies for node in graph):
        return graph, reports, reasons
    nodes = [replace(node, bodies=tuple(quantized(body) for body in node.bodies)) for node in graph]
    return rebuild(graph, nodes), reports, reasons


#: Maximum number of samples on which errors are measured; each is evaluated twice in numpy.
_MAX_MEASURED = 8
#: Maximum number of samples on which the errors of weights that multiply int16 are compensated.
_MAX_COMPENSATED = 64
#: Limit on the runs of subgraphs while errors are measured; at least one sample is measured.
_MAX_SUBGRAPH_RUNS = 1 << 12
#: Limit in bytes on the float values that are cached during calibration.
_MAX_CACHED_BYTES = 1 << 30


def quantize(
    graph: Graph,
    samples: Calibration,
    *,
    per_channel: bool = True,
    skip: Collection[str] = (),
    int16: Collection[str] = (),
    rounding: Kernels = "reference",
    random: bool = False,
    limits: bool = True,
    lanes: int | None = None,
    budget: AccuracyBudget | None = None,
) -> tuple[Graph, QuantizationReport]:
    """Quantize a trained float32 graph to int8.

    Activations become int8, weights symmetric int8, biases int32. Ranges are determined from the values of the float
    graph on the samples. Inputs and outputs of the graph and of its subgraphs remain float32, with quantize and
    dequantize nodes at the boundary. Plain integers (indices, masks, images) are unchanged.

    Parameters
    ----------
    graph : Graph
        A float model.
    samples : Calibration
        Calibration data: a dict of arrays whose first axis indexes samples, or a list of samples.
    per_channel : bool
        True for one weight scale per output channel.
    skip : collection of str
        Names of nodes or operators, including those in subgraphs, that remain in floating point.
    int16 : collection of str
        Names of nodes or operators, including those in subgraphs, whose activations become int16; "all" for all nodes.
        With "auto", as few results as meet `budget` also become int16, those outside of subgraphs that add most noise.
    rounding : Kernels
        Kernels whose rounding is used to measure errors.
    random : bool
        True if the samples are random; stored in the report.
    limits : bool
        True to search for the nodes that limit the quality of an output with a low signal-to-noise ratio.
    lanes : int or None
        Rows of a tile of weights on the target, of which blocks of weights with a scale of their own must be multiples
        to keep their integers; the weights of other blocks are quantized like float weights. 0: no blocks keep their
        integers; None: all do.
    budget : AccuracyBudget or None
        Accuracy, relative to the float graph, that results chosen by "auto" have to meet; None for 30 dB.

    Raises
    ------
    InputError
        The graph is quantized already or has no float32 values, the samples do not match the inputs or are random with
        "auto", the labels of `budget` do not match the samples, or a name in `skip` or `int16` does not exist.
    """
    graph = simplify(graph)
    why = obstacle(graph)
    if why is not None:
        raise InputError(f"{graph.name!r} {why}")
    automatic = AUTO in int16
    int16 = set(int16) - {AUTO}
    if automatic and random:
        raise InputError(
            f"int16 {AUTO!r} needs calibration samples, on which it measures the noise of results"
        )
    graph, integers = without_hybrids(graph)
    graph, integers = prepared(graph, {*skip, *int16}, integers)
    graph = without_blocks(graph, lambda node: keeps_blocks(graph, node, lanes))
    given = with_states(graph, samples_of(graph, samples))
    watched = SubgraphRecorder()
    floors = SoftmaxRange(graph)
    seen, means, values = _calibrated(graph, given, watched, floors)
    _check_inputs(graph, seen)
    within = floors.graph_within()
    kept = kept_float(within, skip, {name for name, each in seen.items() if not each.finite})
    sharing = Sharing(within, kept)
    counting = {name: each for name, each in seen.items() if name not in sharing.covered}
    states = accumulated(within, kept)
    largest = {name: max(-each.low, each.high) for name, each in seen.items()}
    choices = _choices(sharing, counting, floors, saturations(sharing, states, largest))
    for node in within:
        if node.outputs[0] in states:
            narrow = {sharing.root(name) for name in node.inputs if name not in states} & choices.keys()
            choices |= {
                root: replace(choices[root], quantization=power_of_two(choices[root].quantization))
                for root in narrow
            }
    inside, reports, unseen = quantize_bodies(
        within,
        watched,
        lambda body, runs: quantize(
            body,
            runs,
            per_channel=per_channel,
            skip=names_in(body) & set(skip),
            int16=(names_in(body) | {ALL}) & set(int16),
            rounding=rounding,
            random=random,
            limits=False,
            lanes=lanes,
        ),
        is_float,
    )
    pooled = _pooled(within, means)
    expected = {name: mean for name, each in pooled.items() if (mean := each.expected()) is not None}

    def of(name: str, dtype: str) -> Quantization:
        return choices[sharing.root(name)].of(dtype)

    def rewriter_with(names: Collection[str], samples: list[Sample]) -> Rewriter:
        nodes = int16_nodes(within, names, kept)
        return Rewriter(inside, kept, of, per_channel, expected, states, nodes, samples, integers)

    def quantized_with(more: Collection[str], samples: list[Sample]) -> tuple[Graph, Mapping[str, Tensor]]:
        made = rewriter_with({*int16, *more}, samples)
        graph = made.run()
        return graph, {name: each for name, each in made.integers.items() if name not in sharing.covered}

    measured = given[: _measured_count(watched, len(given), random=random)]
    chosen = None
    if automatic and ALL not in int16:
        chosen = choose_int16(within, given, lambda more: quantized_with(more, values), rounding, budget)
        int16 |= set(chosen.nodes)
    rewriter = rewriter_with(int16, values)
    result = rewriter.run()
    names = {name: tensor for name, tensor in rewriter.integers.items() if name not in sharing.covered}
    errors = _measured(floors, result, names, measured, values, rounding)

    def method(name: str, tensor: Tensor) -> str:
        return "int16" if tensor.dtype == "int16" else choices[sharing.root(name)].method

    tensors = tuple(
        TensorReport(name, *_scale_and_zero(tensor), method(name, tensor), errors[name].sqnr_db)
        for name, tensor in names.items()
    )
    outputs = output_reports([n for n in graph.sample_outputs if n in errors], errors, _from_integers(result))
    tensors += tuple(each for report in reports for each in report.tensors)
    reasons = dict(rewriter.reasons) | unseen
    for report in reports:
        reasons |= {name: EDGE_INSIDE if why == BOUNDARY_REASON else why for name, why in report.kept.items()}
    ranges = {} if random else _input_ranges(result, given)
    report = QuantizationReport(len(given), len(measured), random, outputs, tensors, reasons, ranges=ranges)
    report = node_sensitivity(report, floors, result, rewriter.integers, measured, rounding)
    limited = limited_output(report) if limits and ALL not in int16 else None
    if limited is not None:
        found = limits_of(limited, within, measured, lambda more: quantized_with(more, []), rounding)
        report = replace(report, limits=found)
    return result, replace(report, int16=chosen)


def _input_ranges(quantized: Graph, samples: list[Sample]) -> dict[str, tuple[float | None, float | None]]:
    """Return the lowest and the highest value of each float input that is quantized, by name."""
    ranges: dict[str, tuple[float | None, float | None]] = {}
    for name in quantized.sample_inputs:
        waiting, read = [name], False
        while waiting and quantized.tensors[name].dtype.startswith("float"):
            for node in quantized.consumers(waiting.pop()):
                read |= node.op == "quantize"
                if node.op in LAYOUT or node.op == "dequantize":
                    waiting += node.outputs
        if read:
            ends = (
                min(float(each[name].min()) for each in samples),
                max(float(each[name].max()) for each in samples),
            )
            low, high = (end if math.isfinite(end) else None for end in ends)
            ranges[name] = low, high
    return ranges


def _measured_count(watched: SubgraphRecorder, samples: int, *, random: bool) -> int:
    """Return the number of samples on which to measure errors; 1 if the samples are random."""
    each = watched.runs // samples
    return 1 if random else max(1, min(_MAX_MEASURED, _MAX_SUBGRAPH_RUNS // max(each, 1)))


def _calibrated(
    graph: Graph, samples: list[Sample], watched: SubgraphRecorder, floors: SoftmaxRange
) -> tuple[dict[str, RangeRecorder], dict[str, ChannelMeans], list[Sample]]:
    """Evaluate the float graph on the samples.

    Returns
    -------
    seen, means, cached
        Recorded elements of each float tensor that is not constant, means of the operands of products with weights,
        and the values of all tensors for the first samples.
    """
    multiplied = {node.inputs[0] for node in graph if node.op in WEIGHTED}
    means: dict[str, ChannelMeans] = defaultdict(ChannelMeans)
    seen: dict[str, RangeRecorder] = defaultdict(RangeRecorder)
    cached: list[Sample] = []
    bytes_left = _MAX_CACHED_BYTES
    for sample in samples:
        values = evaluate(graph, sample, keep=True, on_subgraph=watched)
        bytes_left -= sum(each.nbytes for each in values.values())
        if bytes_left >= 0 and len(cached) < _MAX_COMPENSATED:
            cached.append(values)
        least = floors.add(values)
        for name, each in values.items():
            if each.dtype == "float32":
                seen[name].add(each, least.get(name))
                if name in multiplied:
                    means[name].add(each)
    for name, lowest in floors.least.items():
        if name in seen and seen[name].cut:  # with other samples, values may be as small as the floor
            seen[name].low = min(seen[name].low, lowest)
    return seen, means, cached


def _check_inputs(graph: Graph, seen: Mapping[str, RangeRecorder]) -> None:
    """Raise InputError if an input has infinite values, except in attention masks, which the floors make finite."""
    for name in graph.inputs:
        if name in seen and not seen[name].finite:
            raise InputError(f"calibration: input {name!r} must be finite, but has infinite values")


def _pooled(graph: Graph, means: Mapping[str, ChannelMeans]) -> dict[str, ChannelMeans]:
    """Pool the means of the operands of one product in all steps of a recurrent network, which share one bias."""
    groups: dict[str, list[str]] = defaultdict(list)
    for node in graph:
        group = graph.tensors[node.outputs[0]].group
        if group and node.op in WEIGHTED and node.inputs[0] in means:
            groups[group].append(node.inputs[0])
    pooled = dict(means)
    for names in groups.values():
        pooled |= dict.fromkeys(names, ChannelMeans([part for name in names for part in means[name].parts]))
    return pooled


def _choices(
    sharing: Sharing, seen: dict[str, RangeRecorder], floors: SoftmaxRange, limits: Mapping[str, float]
) -> dict[str, RangeChoice]:
    """Choose the quantization of each group of tensors.

    Softmax inputs use the whole range above their floor; `limits` contains the largest useful magnitude of other
    groups, by representative tensor.
    """
    whole = {sharing.root(name) for name in floors.least}
    groups: dict[str, list[RangeRecorder]] = defaultdict(list)
    for node in sharing.graph:
        data = sharing.graph.tensors[node.inputs[0]].data if node.op == "gather" else None
        if data is not None and data.dtype == np.float32:
            table = RangeRecorder()
            table.add(data)
            groups[sharing.root(node.inputs[0])].append(table)
    for name, each in seen.items():
        groups[sharing.root(name)].append(each)
    return {
        root: RangeChoice(sharing.fixed[root], "fixed", _fixed_16(sharing.fixed[root]))
        if root in sharing.fixed
        else choose(group, whole=root in whole, limit=limits.get(root, math.inf))
        for root, group in groups.items()
    }


def _fixed_16(q: Quantization) -> Quantization:
    """Return the int16 quantization of tensors whose int8 quantization is fixed.

    The results of softmax, sigmoid and tanh have the scale that LiteRT requires; other fixed quantizations, of integer
    inputs, keep their scale, which is exact.
    """
    return Quantization.per_tensor(2.0**-15 if q in FIXED.values() else q.scale[0])


def _measured(
    floors: SoftmaxRange,
    quantized: Graph,
    names: Mapping[str, Tensor],
    samples: list[Sample],
    values: list[Sample],
    rounding: Kernels,
) -> dict[str, OutputErrors]:
    """Measure the errors of quantized tensors and of outputs over the samples.

    Parameters
    ----------
    floors : SoftmaxRange
        Floors of the float graph's tensors; values below the floor are treated as equal to it.
    quantized : Graph
        The quantized graph.
    names : dict
        Quantized tensors by name of the float tensor.
    samples : list of Sample
        Samples on which errors are measured.
    values : list of Sample
        Cached values of all tensors of the float graph for the first samples.
    rounding : Kernels
        Kernels whose rounding is used for the quantized graph.
    """
    errors: dict[str, OutputErrors] = defaultdict(OutputErrors)
    graph = floors.graph
    for number, sample in enumerate(samples):
        wanted = values[number] if number < len(values) else evaluate(graph, sample, keep=True)
        found = evaluate(quantized, sample, rounding=rounding, keep=True)
        for name, tensor in names.items():
            if name not in graph.outputs and tensor.quantization is not None:
                real = tensor.quantization.dequantized(found[tensor.name])
                errors[name].add(floors.cut(name, wanted[name]), real)
        for name in graph.outputs:
            if name in found:
                errors[name].add(wanted[name], found[name])
    return errors


def _from_integers(graph: Graph) -> set[str]:
    """Return the tensors that are quantized or depend on quantized tensors."""
    found: set[str] = set()
    for node in graph:
        inside = any(_from_integers(body) for body in node.bodies)
        if inside or any(graph.tensors[n].quantization or n in found for n in (*node.inputs, *node.outputs)):
            found |= set(node.outputs)
    return found


def _scale_and_zero(tensor: Tensor) -> tuple[float, int]:
    q = tensor.quantization
    assert q is not None and q.whole
    return q.scale[0], q.zero_point[0]
