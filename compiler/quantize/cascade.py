"""Choice of a cascade: a network with few bits that answers most requests, and the confidence that it must have."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph, Node
from compiler.passes import simplify
from compiler.quantize.bits import (
    WeightNarrower,
    bit_steps,
    check_varied,
    real_values,
    watched_tensors,
    with_own_constants,
)
from compiler.quantize.plan import LAYOUT, is_float
from compiler.quantize.ranges import Calibration, Sample, samples_of
from compiler.quantize.report import CascadeReport, LayerBits
from compiler.quantize.weights import MAX_BITS, MIN_BITS
from compiler.reference import Kernels, evaluate
from hw.config import MlaConfig
from hw.errors import InputError, shown

#: Least number of calibration samples, and largest number that is used.
MIN_SAMPLES, _MAX_SAMPLES = 32, 1024
#: Quantile of the normal distribution for an upper limit that holds with a probability of 90%.
_LIMIT_SIGMAS = 1.2816
#: Share of the budget that the upper limit may use. The other half is for requests that differ from the samples, which
#: bits and threshold were chosen on.
_USED_BUDGET = 0.5
#: Share of the exact network's cycles that a network with fewer bits must save, in addition to the last one, to be
#: evaluated.
_LEAST_SAVING = 0.01
#: Largest number of bits of weights that MATRIX multiplies at twice the rate.
_WIDE_BITS = 4


@dataclass(frozen=True, eq=False)
class _Answers:
    """Answers of a network to the samples.

    Parameters
    ----------
    scores : (samples, classes) float64 array
        Real values before the softmax.
    labels, confidence : (samples,) int arrays
        Index of the largest output, and its value as stored.
    """

    scores: NDArray[np.float64]
    labels: NDArray[np.int64]
    confidence: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _Candidate:
    """Narrow network with the estimates for its best threshold."""

    graph: Graph
    report: CascadeReport


def confidence_of(graph: Graph) -> str:
    """Return the tensor of a quantized graph whose largest element is the confidence of the label.

    Raises
    ------
    InputError
        The graph has not exactly one output, or it is not the 8-bit result of a softmax of one row.
    """
    need = "accuracy_budget: a share of requests needs one output that is an int8 or uint8 softmax of one row"
    if graph.states:
        raise InputError(f"{need}, and no state; {graph.name!r} keeps state {shown(graph.states[0].input)}")
    if len(graph.sample_outputs) != 1:
        raise InputError(f"{need}; {graph.name!r} has {len(graph.sample_outputs)} outputs")
    (output,) = graph.sample_outputs
    name, producer = output, graph.producer(output)
    if producer is not None and producer.op == "dequantize":
        name = producer.inputs[0]
        producer = graph.producer(name)
    while producer is not None and producer.op in LAYOUT:
        producer = graph.producer(producer.inputs[0])
    tensor = graph.tensors[name]
    if (
        producer is None
        or producer.op != "softmax"
        or tensor.dtype not in ("int8", "uint8")
        or graph.out(producer).shape[-1] != tensor.elements
        or tensor.elements < 2
    ):
        made = "an input" if producer is None else f"computed by {producer.op}"
        raise InputError(
            f"{need}; output {shown(output)} of {graph.name!r} is {made}: {tensor.dtype}{list(tensor.shape)}"
        )
    return name


def fit_cascade(
    graph: Graph,
    samples: Calibration,
    share: float,
    cycles: Callable[[Graph], float],
    config: MlaConfig,
    *,
    rounding: Kernels = "reference",
    lanes: int = 0,
) -> tuple[Graph | None, CascadeReport]:
    """Choose a narrow network and a threshold of its confidence, so that few labels change and few cycles are needed.

    Layers lose bits in the order of `bit_steps`, the least additional noise for each cycle that is saved by estimate
    first. For each number of steps that saves cycles, the least threshold is chosen with which the budget is kept: the
    estimated share of requests whose label is accepted and differs is at most half of the budget, with a confidence of
    90%, and so is the share that is counted on the samples. The network with the fewest expected cycles is returned.

    The estimate is a residual bootstrap: the differences of the scores of both networks on a sample are added to the
    narrow network's scores on every sample, and the pairs whose label changes are counted if the label is accepted.
    The limit is computed from the standard error of this statistic over the samples.

    Parameters
    ----------
    graph : Graph
        Exact network: a quantized graph.
    samples : Calibration
        Calibration data: a dict of arrays whose first axis indexes samples, or a list of samples. Labels are not
        needed: a label that does not change is right if the exact network's label is.
    share : float
        Budget: largest share of requests whose label may differ from that of the exact network.
    cycles : callable
        Estimates the cycles of a graph.
    config : MlaConfig
        Hardware configuration of the target.
    rounding : Kernels
        Kernels whose rounding is used for evaluation.
    lanes : int
        Rows of a tile of weights on a target with scaled sums, or 0, as for `WeightNarrower`.

    Returns
    -------
    Graph or None, CascadeReport
        The narrow network, or None if none is expected to save cycles within the budget; and the estimates.

    Raises
    ------
    InputError
        The graph is a float model, has no suitable output, or the samples do not match its inputs, are too few, or are
        all equal.
    """
    if is_float(graph):
        raise InputError(f"accuracy_budget: {graph.name!r} must be quantized first")
    graph = with_own_constants(simplify(graph))
    output = confidence_of(graph)
    given = samples_of(graph, samples)
    if len(given) < MIN_SAMPLES:
        raise InputError(
            f"accuracy_budget: a share of requests needs at least {MIN_SAMPLES} calibration samples, not {len(given)}"
        )
    check_varied(graph, given)
    return _Choice(graph, output, given[:_MAX_SAMPLES], share, cycles, config, rounding, lanes).run()


class _Choice:
    """State of the choice of a narrow network; the parameters are those of `fit_cascade`."""

    def __init__(
        self,
        graph: Graph,
        output: str,
        samples: Sequence[Sample],
        share: float,
        cycles: Callable[[Graph], float],
        config: MlaConfig,
        rounding: Kernels,
        lanes: int,
    ):
        self.graph, self.output, self.samples, self.share = graph, output, samples, share
        self.cycles, self.config = cycles, config
        self.rounding: Kernels = rounding
        self.narrower = WeightNarrower(graph, samples, rounding, lanes)
        self.exact_cycles = cycles(graph)
        self.exact = self._answers(graph)
        self.best: _Candidate | None = None

    def run(self) -> tuple[Graph | None, CascadeReport]:
        """Evaluate the candidates, and return the best one."""
        narrower, count = self.narrower, len(self.samples)
        costs = {
            name: _layer_cycles(self.graph, layer.node, self.config)
            for name, layer in narrower.layers.items()
        }
        steps = bit_steps(narrower.noise_of_layers(), costs)
        last, least = self.exact_cycles, _LEAST_SAVING * self.exact_cycles
        best_bits: dict[str, int] = {}
        saved = 0.0
        before = dict.fromkeys(costs, MAX_BITS)
        for number, (name, bits) in enumerate(steps, 1):
            saved += costs[name][before[name] - MIN_BITS] - costs[name][bits - MIN_BITS]
            before[name] = bits
            if saved < least:
                continue
            saved = 0.0
            chosen = dict(steps[:number])
            made = narrower.narrowed(chosen)
            estimate = self.cycles(made)
            if estimate <= last - least:
                last = estimate
                if self._try(made, chosen, estimate):
                    best_bits = chosen
        if best_bits and narrower.scale(best_bits):
            made = narrower.narrowed(best_bits)
            self._try(made, best_bits, self.cycles(made))
        if self.best is None:
            exact = self.exact_cycles
            return None, CascadeReport(self.share, count, None, 0, 0.0, 0.0, 1.0, exact, exact)
        return self.best.graph, self.best.report

    def _try(self, made: Graph, bits: dict[str, int], narrow_cycles: float) -> bool:
        """Evaluate a narrow network, and return True if it is the best so far."""
        most = self.best.report.cycles if self.best else self.exact_cycles
        if narrow_cycles >= most:
            return False
        narrow = self._answers(made)
        found = _threshold(self.exact, narrow, self.share, int(np.iinfo(made.tensors[self.output].dtype).min))
        if found is None:
            return False
        threshold, expected, limit = found
        accepted = narrow.confidence >= threshold
        fallbacks = float(1 - accepted.mean())
        total = narrow_cycles + fallbacks * self.exact_cycles
        if total >= most:
            return False
        sizes = self.narrower.sizes
        report = CascadeReport(
            budget=self.share,
            samples=len(self.samples),
            threshold=threshold,
            changed=int((accepted & (narrow.labels != self.exact.labels)).sum()),
            expected=expected,
            limit=limit,
            fallbacks=fallbacks,
            cycles=total,
            exact_cycles=self.exact_cycles,
            layers=tuple(LayerBits(name, bits.get(name, MAX_BITS), size) for name, size in sizes.items()),
        )
        self.best = _Candidate(made, report)
        return True

    def _answers(self, graph: Graph) -> _Answers:
        (before,) = watched_tensors(graph)
        scores, outputs = [], []
        for sample in self.samples:
            values = evaluate(graph, sample, rounding=self.rounding, keep=True)
            scores.append(real_values(graph, before, values).reshape(-1))
            outputs.append(values[self.output].reshape(-1).astype(np.int64))
        stacked = np.stack(outputs)
        return _Answers(np.stack(scores).astype(np.float64), stacked.argmax(1), stacked.max(1))


def _layer_cycles(graph: Graph, node: Node, config: MlaConfig) -> list[float]:
    """Return an estimate of the cycles of a product with 2, 3, ... 8 bits: multiplications and loads of weights."""
    weights, y = graph.ins(node)[1], graph.out(node)
    macs = y.elements * (weights.elements // y.shape[-1])
    wide = config.wide and (node.op == "dense" or (node.op == "conv2d" and node.attributes["groups"] == 1))
    found = []
    for bits in range(MIN_BITS, MAX_BITS + 1):
        rate = 2 if wide and bits <= _WIDE_BITS else 1
        found.append(macs / (rate * config.n**2) + weights.elements * bits / 8 / config.n)
    return found


def _threshold(
    exact: _Answers, narrow: _Answers, share: float, lowest: int
) -> tuple[int, float, float] | None:
    """Return the least threshold within the budget, the expected share of changed labels and its upper limit.

    None if not even the most confident label is accepted. The threshold is `lowest` if all labels are accepted.
    """
    residuals = exact.scores - narrow.scores
    moved = np.stack(
        [(scores + residuals).argmax(1) != scores.argmax() for scores in narrow.scores]
    )  # [i, j]: whether the residual of sample j changes the label of sample i
    different = exact.labels != narrow.labels
    count, found = len(moved), None
    for rejected in (*sorted(set(narrow.confidence.tolist()), reverse=True)[1:], None):
        least = lowest if rejected is None else rejected + 1
        accepted = narrow.confidence >= least
        changes = moved & accepted[:, None]
        variance = (changes.mean(1).var() + changes.mean(0).var()) / count
        estimate, counted = float(changes.mean()), float((accepted & different).mean())
        limit = max(estimate + _LIMIT_SIGMAS * math.sqrt(variance), counted)
        if limit > _USED_BUDGET * share:
            break
        found = least, max(estimate, counted), limit
    return found
