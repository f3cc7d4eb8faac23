"""Post-training quantization of a float32 graph and its subgraphs to int8 operators."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from compiler.ir.graph import Graph, Node, rebuild
from compiler.ir.tensor import Tensor
from compiler.passes import simplify
from compiler.quantize.plan import (
    EDGE,
    EDGE_INSIDE,
    Sharing,
    is_float,
    kept_float,
    names_in,
    obstacle,
    without_hybrids,
)
from compiler.quantize.ranges import (
    Calibration,
    InputRecorder,
    RangeChoice,
    Sample,
    SoftmaxRange,
    choose,
    samples_of,
)
from compiler.quantize.report import OutputErrors, QuantizationReport, TensorReport, output_reports
from compiler.quantize.rewrite import Rewriter, means_as_pools
from compiler.quantize.sensitivity import node_sensitivity
from compiler.reference import Kernels, evaluate
from hw.errors import InputError

#: So many runs of a subgraph are kept at most, evenly spread over all: a loop may have thousands.
_MOST = 64

#: Quantizes a subgraph with samples.
Quantize = Callable[[Graph, list[Sample]], tuple[Graph, QuantizationReport]]


@dataclass
class Runs:
    """What goes into a subgraph, run by run."""

    samples: list[Sample] = field(default_factory=list)
    count: int = 0
    step: int = 1

    def add(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Another run; what is not finite says nothing of a range."""
        finite = all(np.isfinite(array).all() for array in inputs.values() if array.dtype.kind == "f")
        if finite and self.count % self.step == 0:
            self.samples.append({name: np.array(array) for name, array in inputs.items()})
        self.count += 1
        if len(self.samples) > _MOST:
            self.samples, self.step = self.samples[::2], self.step * 2


class RecordedSubgraph:
    """The runs of all subgraphs, for `evaluate`."""

    def __init__(self) -> None:
        self._runs: dict[int, Runs] = {}

    def __call__(self, graph: Graph, inputs: Mapping[str, np.ndarray]) -> None:
        """A run of a subgraph."""
        self._runs.setdefault(id(graph), Runs()).add(inputs)

    @property
    def runs(self) -> int:
        """Of all subgraphs together."""
        return sum(each.count for each in self._runs.values())

    def samples(self, graph: Graph) -> list[Sample]:
        """What went into a subgraph."""
        return self._runs.get(id(graph), Runs()).samples


def quantize_bodies(
    graph: Graph, watched: RecordedSubgraph, quantize: Quantize, wanted: Callable[[Graph], bool]
) -> tuple[Graph, list[QuantizationReport], dict[str, str]]:
    """The graph with those subgraphs quantized that are `wanted`; their reports; why nodes of others stay float."""
    reports: list[QuantizationReport] = []
    reasons: dict[str, str] = {}

    def changed(body: Graph) -> Graph:
        if not wanted(body):
            return body
        samples = watched.samples(body)
        if not samples:
            reasons.update({node.name: "not executed by any calibration sample" for _, node in body.walk()})
            return body
        made, report = quantize(body, samples)
        reports.append(report)
        return made

    def of(node: Node) -> Node:
        return replace(node, bodies=tuple(changed(body) for body in node.bodies))

    if not any(node.bodies for node in graph):
        return graph, reports, reasons
    return rebuild(graph, [of(node) for node in graph]), reports, reasons


#: Errors are measured on so many samples at most: each is evaluated in numpy, twice.
_MEASURED = 8
#: And on no more than run subgraphs so often, but for the first.
_ITERATIONS = 1 << 12
#: Bytes of float values that are kept from calibration for the errors, rather than computed again.
_KEPT_BYTES = 1 << 30


def quantize(
    graph: Graph,
    samples: Calibration,
    *,
    per_channel: bool = True,
    skip: Collection[str] = (),
    rounding: Kernels = "reference",
    random: bool = False,
) -> tuple[Graph, QuantizationReport]:
    """Quantize a float32 graph after its training.

    Integers that it has beside (places, masks, images of bytes) stay what they are.
    Inputs and outputs stay float32, those of subgraphs of control flow as well; quantize and dequantize nodes stand at
    the edges. Activations become int8, weights
    symmetric int8, biases int32. Ranges come from the values that the float graph has on the samples.

    Parameters
    ----------
    graph : Graph
        A float model.
    samples : Calibration
        Calibration data: a dict of arrays whose first axis counts samples, or a list of samples.
    per_channel : bool
        Weights get a scale for each output channel.
    skip : collection of str
        Nodes or operators, by name, that stay float; those of subgraphs of control flow as well.
    rounding : Kernels
        Rounding with which the errors are measured.
    random : bool
        The samples are random; recorded in the report.

    Raises
    ------
    InputError
        The graph is quantized already or has no float32 numbers, the samples do not fit, or `skip` names nothing.
    """
    graph = simplify(graph)
    why = obstacle(graph)
    if why is not None:
        raise InputError(f"{graph.name!r} {why}")
    graph = means_as_pools(without_hybrids(graph))
    given = samples_of(graph, samples)
    watched = RecordedSubgraph()
    floors = SoftmaxRange(graph)
    seen, values = _calibrated(graph, given, watched, floors)
    _check_inputs(graph, seen)
    within = floors.graph_within()
    kept = kept_float(within, skip, {name for name, each in seen.items() if not each.finite})
    sharing = Sharing(within, kept)
    counting = {name: each for name, each in seen.items() if name not in sharing.covered}
    choices = _choices(sharing, counting, floors)
    inside, reports, unseen = quantize_bodies(
        within,
        watched,
        lambda body, runs: quantize(
            body,
            runs,
            per_channel=per_channel,
            skip=names_in(body) & set(skip),
            rounding=rounding,
            random=random,
        ),
        is_float,
    )
    rewriter = Rewriter(inside, kept, lambda name: choices[sharing.root(name)].quantization, per_channel)
    made = rewriter.run()
    measured = given[: _few(watched, len(given), random=random)]
    names = {name: tensor for name, tensor in rewriter.integers.items() if name not in sharing.covered}
    errors = _measured(floors, made, names, measured, values, rounding)
    tensors = tuple(
        TensorReport(name, *_meaning(tensor), choices[sharing.root(name)].method, errors[name].sqnr_db)
        for name, tensor in names.items()
    )
    outputs = output_reports([n for n in graph.outputs if n in errors], errors, _from_integers(made))
    tensors += tuple(each for report in reports for each in report.tensors)
    reasons = dict(rewriter.reasons) | unseen
    for report in reports:
        reasons |= {name: EDGE_INSIDE if why == EDGE else why for name, why in report.kept.items()}
    report = QuantizationReport(len(given), len(measured), random, outputs, tensors, reasons)
    return made, node_sensitivity(report, floors, made, rewriter.integers, measured, rounding)


def _few(watched: RecordedSubgraph, samples: int, *, random: bool) -> int:
    """On how many samples errors are measured: one that is made up tells no more than two."""
    each = watched.runs // samples
    return 1 if random else max(1, min(_MEASURED, _ITERATIONS // max(each, 1)))


def _calibrated(
    graph: Graph, samples: list[Sample], watched: RecordedSubgraph, floors: SoftmaxRange
) -> tuple[dict[str, InputRecorder], list[Sample]]:
    """What the samples showed of each float tensor, and all values of the first samples.

    Constants are part of what reads them.
    """
    seen: dict[str, InputRecorder] = defaultdict(InputRecorder)
    kept: list[Sample] = []
    room = _KEPT_BYTES
    for sample in samples:
        values = evaluate(graph, sample, keep=True, watch=watched)
        room -= sum(each.nbytes for each in values.values())
        if room >= 0 and len(kept) < _MEASURED:
            kept.append(values)
        least = floors.add(values)
        for name, each in values.items():
            if each.dtype == "float32":
                seen[name].add(each, least.get(name))
    for name, lowest in floors.least.items():
        if name in seen and seen[name].cut:  # on another sample as much may be masked
            seen[name].low = min(seen[name].low, lowest)
    return seen, kept


def _check_inputs(graph: Graph, seen: Mapping[str, InputRecorder]) -> None:
    """Refuse samples with infinite numbers, but for those of masks."""
    for name in graph.inputs:
        if name in seen and not seen[name].finite:
            raise InputError(f"calibration: input {name!r} must be finite, but has infinite values")


def _choices(
    sharing: Sharing, seen: dict[str, InputRecorder], floors: SoftmaxRange
) -> dict[str, RangeChoice]:
    """A quantization for each group of tensors; of what softmax reads all above the floor counts."""
    whole = {sharing.root(name) for name in floors.least}
    groups: dict[str, list[InputRecorder]] = defaultdict(list)
    for node in sharing.graph:
        data = sharing.graph.tensors[node.inputs[0]].data if node.op == "gather" else None
        if data is not None and data.dtype == np.float32:
            table = InputRecorder()
            table.add(data)
            groups[sharing.root(node.inputs[0])].append(table)
    for name, each in seen.items():
        groups[sharing.root(name)].append(each)
    return {
        root: RangeChoice(sharing.fixed[root], "fixed")
        if root in sharing.fixed
        else choose(group, whole=root in whole)
        for root, group in groups.items()
    }


def _measured(
    floors: SoftmaxRange,
    made: Graph,
    names: Mapping[str, Tensor],
    samples: list[Sample],
    values: list[Sample],
    rounding: Kernels,
) -> dict[str, OutputErrors]:
    """Errors of quantized tensors above their floors, and of outputs; `values` are the float graph's on some."""
    errors: dict[str, OutputErrors] = defaultdict(OutputErrors)
    graph = floors.graph
    for number, sample in enumerate(samples):
        wanted = values[number] if number < len(values) else evaluate(graph, sample, keep=True)
        found = evaluate(made, sample, rounding=rounding, keep=True)
        for name, tensor in names.items():
            if name not in graph.outputs and tensor.quantization is not None:
                real = tensor.quantization.dequantized(found[tensor.name])
                errors[name].add(floors.cut(name, wanted[name]), real)
        for name in graph.outputs:
            if name in found:
                errors[name].add(wanted[name], found[name])
    return errors


def _from_integers(graph: Graph) -> set[str]:
    """Tensors that are quantized, or computed from such."""
    found: set[str] = set()
    for node in graph:
        inside = any(_from_integers(body) for body in node.bodies)
        if inside or any(graph.tensors[n].quantization or n in found for n in (*node.inputs, *node.outputs)):
            found |= set(node.outputs)
    return found


def _meaning(tensor: Tensor) -> tuple[float, int]:
    q = tensor.quantization
    assert q is not None and q.whole
    return q.scale[0], q.zero_point[0]
