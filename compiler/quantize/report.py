"""Report of the errors of a quantized graph relative to the float graph."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.identity import identity, restored, stored
from compiler.util.tables import Column, counted, figures, format_table

#: Phrase in the reasons for which nodes with infinite values remain in floating point.
INFINITE_VALUES = "has infinite numbers"
_log = logging.getLogger(__name__)

#: Signal-to-noise ratio of an output, in dB, below which a warning is logged.
_WARNING_DB = 20
#: Ratio below which a warning is logged unless at least this share of the rows have the same largest element.
_GOOD_DB, _GOOD_TOP1 = 30, 0.98
#: Share of the samples that are labelled rightly below which a warning is logged for a budget in labels, and share of
#: these above which one is logged for its size.
_LEAST_RIGHT, _MOST_PERMITTED = 0.1, 0.1
#: Number of nodes listed in a summary.
_LISTED_NODES = 3
#: Number of limiting nodes listed in a summary.
_LISTED_LIMITS = 6


@identity("TensorReport", "name", "scale", "zero_point", "method", "sqnr_db", "node", "alone_db")
@dataclass(frozen=True)
class TensorReport:
    """Quantization and errors of a tensor of the float graph.

    Parameters
    ----------
    name : str
        Name of the tensor in the float graph.
    scale : float
        Scale of its quantization.
    zero_point : int
        Zero point of its quantization.
    method : str
        Method that chose the range: min/max, a percentile, least squares, or fixed by the operator.
    sqnr_db : float or None
        Signal-to-noise ratio in dB, including the errors of all preceding operators; None if there is no error.
    node : str
        Node of the float graph that computes the tensor; empty for an input.
    node_sqnr_db : float or None
        Signal-to-noise ratio of the node with exact inputs, in dB; None if there is no error or it was not measured.
    """

    name: str
    scale: float
    zero_point: int
    method: str
    sqnr_db: float | None
    node: str = ""
    node_sqnr_db: float | None = None


@identity("OutputReport", "name", "max_abs", "sqnr_db", "top1", "quantized", "values", "left_out")
@dataclass(frozen=True)
class OutputReport:
    """Errors of an output of the model.

    Parameters
    ----------
    name : str
        Name of the output.
    max_abs : float
        Maximum absolute error.
    sqnr_db : float or None
        Signal-to-noise ratio in dB; None if there is no error.
    top1 : float or None
        Share of rows along the last dimension whose largest element has the same index in both graphs; None if rows
        have one element.
    quantized : bool
        True if the output depends on quantized tensors; otherwise, it equals the float graph's output exactly.
    values, left_out : int
        Number of values, and number of infinite or NaN values, none of which count in the errors.
    """

    name: str
    max_abs: float
    sqnr_db: float | None
    top1: float | None
    quantized: bool = True
    values: int = 0
    left_out: int = 0


@identity("NodeLimit", "node", "share")
@dataclass(frozen=True)
class NodeLimit:
    """Part of an output's noise that the rounding of one int8 activation causes.

    Parameters
    ----------
    node : str
        Node that computes the activation, or the name of an input.
    share : float
        Noise of the output if only this activation is rounded to int8, as a fraction of the output's whole noise.
    """

    node: str
    share: float


@identity("WideQuality", "nodes", "sqnr_db")
@dataclass(frozen=True)
class WideQuality:
    """Quality of the output if the results of some nodes are int16.

    Parameters
    ----------
    nodes : tuple of str
        Nodes whose results are int16; "all" stands for all nodes.
    sqnr_db : float or None
        Signal-to-noise ratio of the output in dB; None if there is no error.
    """

    nodes: tuple[str, ...]
    sqnr_db: float | None


@identity("OutputLimits", "output", "nodes", "int16")
@dataclass(frozen=True)
class OutputLimits:
    """Nodes that limit the quality of an output with a low signal-to-noise ratio.

    Parameters
    ----------
    output : str
        Name of the output.
    nodes : tuple of NodeLimit
        Nodes whose int8 results cause most noise, in descending order.
    int16 : tuple of WideQuality
        Measured quality with the results of these nodes, and of all nodes, in int16.
    """

    output: str
    nodes: tuple[NodeLimit, ...]
    int16: tuple[WideQuality, ...]


@identity("ChosenInt16", "nodes", "before_db", "sqnr_db", "met")
@dataclass(frozen=True)
class ChosenInt16:
    """Nodes whose results were chosen to be int16 (`--int16 auto`).

    Parameters
    ----------
    nodes : tuple of str
        The nodes, of the compiler's graph.
    before_db, sqnr_db : float or None
        Lowest signal-to-noise ratio of an output in dB with int8 results and with these results in int16, on the
        samples on which they were chosen; None if all outputs are equal.
    met : bool
        True if the outputs meet the accuracy budget.
    """

    nodes: tuple[str, ...]
    before_db: float | None
    sqnr_db: float | None
    met: bool

    @staticmethod
    def from_document(document: Mapping[str, Any]) -> "ChosenInt16":
        """Restore from an untrusted document; raise KeyError, TypeError or ValueError if it is not valid."""
        before_db, sqnr_db = (
            None if document[name] is None else float(document[name]) for name in ("before_db", "sqnr_db")
        )
        nodes = tuple(str(name) for name in document["nodes"])
        return ChosenInt16(nodes, before_db, sqnr_db, bool(document["met"]))


@identity("LayerBits", "node", "bits", "weights")
@dataclass(frozen=True)
class LayerBits:
    """Bits of the weights of a layer.

    Parameters
    ----------
    node : str
        Name of the product.
    bits : int
        Number of bits of its weights, 2 to 8.
    weights : int
        Number of its weights.
    """

    node: str
    bits: int
    weights: int


@identity(
    "WeightReport",
    "samples",
    "sqnr_db",
    "worse",
    "changed",
    "expected",
    "right",
    "right_before",
    "layers",
    "held_out",
    "permitted",
    added=("held_out", "permitted"),
)
@dataclass(frozen=True)
class WeightReport:
    """Bits of the weights of each layer, and the accuracy relative to the graph with 8-bit weights.

    Parameters
    ----------
    samples : int
        Number of samples on which the accuracy was measured.
    sqnr_db : float or None
        Lowest signal-to-noise ratio of an output in dB; None if all outputs are equal.
    worse : int or None
        Number of samples that are labelled rightly with 8-bit weights, but not with these; None without labels.
    changed : int or None
        Number of samples whose label differs from that with 8-bit weights; None without labels.
    expected : float or None
        Number of rightly labelled samples whose label the noise would change on average; None without labels.
    right, right_before : int or None
        Number of samples that are labelled rightly with these weights, and with 8-bit weights; None without labels.
    layers : tuple of LayerBits
        Bits of each layer whose weights may have fewer than 8 bits; empty if there is none.
    held_out : bool
        True if each sample was measured with weights that were fitted on the other half of the samples; False if
        there were too few samples for that, so that the accuracy on others may be less.
    permitted : int or None
        Number of samples labelled worse that the budget permits; None for a budget in decibels.
    """

    samples: int
    sqnr_db: float | None
    worse: int | None = None
    changed: int | None = None
    expected: float | None = None
    right: int | None = None
    right_before: int | None = None
    layers: tuple[LayerBits, ...] = ()
    held_out: bool = False
    permitted: int | None = None

    @property
    def mean_bits(self) -> float:
        """Mean number of bits of the weights of `layers`; 8 if there is none."""
        weights = sum(each.weights for each in self.layers)
        return sum(each.bits * each.weights for each in self.layers) / weights if weights else 8.0

    @staticmethod
    def from_document(document: Mapping[str, Any]) -> "WeightReport":
        """Restore a report from an untrusted document; raise KeyError, TypeError or ValueError if it is not valid."""
        counts = {
            name: None if document[name] is None else int(document[name])
            for name in ("worse", "changed", "right", "right_before")
        }
        sqnr_db, expected = (
            None if document[name] is None else float(document[name]) for name in ("sqnr_db", "expected")
        )
        return WeightReport(
            int(document["samples"]),
            sqnr_db,
            expected=expected,
            **counts,
            layers=tuple(restored(LayerBits, each) for each in document["layers"]),
            held_out=bool(document.get("held_out", False)),
            permitted=None if document.get("permitted") is None else int(document["permitted"]),
        )


@identity(
    "CascadeReport",
    "budget",
    "samples",
    "threshold",
    "changed",
    "expected",
    "limit",
    "fallbacks",
    "cycles",
    "exact_cycles",
    "layers",
)
@dataclass(frozen=True)
class CascadeReport:
    """Narrow network of a cascade, and the loss that is expected with it (`compiler.quantize.cascade`).

    Parameters
    ----------
    budget : float
        Largest share of requests whose label may differ from that of the exact network.
    samples : int
        Number of calibration samples.
    threshold : int or None
        Least value of the largest output with which the label of the narrow network is accepted; None if no narrow
        network is expected to save cycles within the budget, so that only the exact network runs.
    changed : int
        Number of samples whose label is accepted and differs from that of the exact network.
    expected, limit : float
        Estimated share of requests whose label is accepted and differs, and upper limit of this estimate with a
        confidence of 90%; both are at least the share on the samples.
    fallbacks : float
        Share of the samples whose label is not accepted.
    cycles, exact_cycles : float
        Estimated mean cycles of a request, and cycles of the exact network.
    layers : tuple of LayerBits
        Bits of the narrow network's weights.
    """

    budget: float
    samples: int
    threshold: int | None
    changed: int
    expected: float
    limit: float
    fallbacks: float
    cycles: float
    exact_cycles: float
    layers: tuple[LayerBits, ...] = ()

    @staticmethod
    def from_document(document: Mapping[str, Any]) -> "CascadeReport":
        """Restore a report from an untrusted document; raise KeyError, TypeError or ValueError if it is not valid."""
        names = ("budget", "expected", "limit", "fallbacks", "cycles", "exact_cycles")
        numbers = {name: float(document[name]) for name in names}
        if not all(0 <= each < float("inf") for each in numbers.values()):
            raise ValueError("the figures of a cascade must be numbers of at least 0")
        threshold = document["threshold"]
        return CascadeReport(
            **numbers,
            samples=int(document["samples"]),
            threshold=None if threshold is None else int(threshold),
            changed=int(document["changed"]),
            layers=tuple(restored(LayerBits, each) for each in document["layers"]),
        )


@identity(
    "QuantizationReport",
    "samples",
    "measured",
    "random",
    "outputs",
    "tensors",
    "kept",
    "limits",
    "ranges",
    "weights",
    "int16",
    "cascade",
    added=("ranges", "weights", "int16", "cascade"),
)
@dataclass(frozen=True)
class QuantizationReport:
    """Errors of a quantized model, and the nodes that remain in floating point.

    Parameters
    ----------
    samples : int
        Number of calibration samples.
    measured : int
        Number of samples on which errors were measured.
    random : bool
        True if the samples were random; the errors are then meaningless.
    outputs, tensors : tuples
        Errors of the outputs and of the tensors.
    kept : dict
        Reason why a node remains in floating point or converts between float and integers, by node name.
    limits : OutputLimits or None
        Nodes that limit the output with the lowest signal-to-noise ratio; None if that ratio is high enough.
    ranges : dict
        Lowest and highest value of each quantized input in the samples, by name; None for an infinite value. Empty if
        the samples were random.
    weights : WeightReport or None
        Bits of the weights of each layer; None if all weights have 8 bits. The other figures are those with 8 bits.
    int16 : ChosenInt16 or None
        Results that were chosen to be int16; None if the user did not ask for a choice.
    cascade : CascadeReport or None
        Narrow network that computes most requests; None if the network is no cascade.
    """

    samples: int
    measured: int
    random: bool
    outputs: tuple[OutputReport, ...]
    tensors: tuple[TensorReport, ...]
    kept: Mapping[str, str] = field(default_factory=dict)
    limits: OutputLimits | None = None
    ranges: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    weights: WeightReport | None = None
    int16: ChosenInt16 | None = None
    cascade: CascadeReport | None = None

    def document(self) -> dict[str, Any]:
        """Return the report as a JSON-serializable dict."""
        return stored(self)

    @staticmethod
    def from_document(document: Mapping[str, Any]) -> "QuantizationReport":
        """Restore a report from an untrusted document.

        Raises
        ------
        KeyError, TypeError, ValueError
            The document is not a valid report.
        """
        fields: dict[str, Any] = {
            "outputs": tuple(restored(OutputReport, each) for each in document["outputs"]),
            "tensors": tuple(restored(TensorReport, each) for each in document["tensors"]),
            "kept": {str(name): str(why) for name, why in document["kept"].items()},
        }
        limits = document.get("limits")
        if limits is not None:
            fields["limits"] = OutputLimits(
                str(limits["output"]),
                tuple(restored(NodeLimit, each) for each in limits["nodes"]),
                tuple(
                    WideQuality(
                        tuple(str(name) for name in each["nodes"]),
                        None if each["sqnr_db"] is None else float(each["sqnr_db"]),
                    )
                    for each in limits["int16"]
                ),
            )
        fields["ranges"] = {
            str(name): _bounds(each) for name, each in dict(document.get("ranges", {})).items()
        }
        weights = document.get("weights")
        fields["weights"] = None if weights is None else WeightReport.from_document(weights)
        chosen = document.get("int16")
        fields["int16"] = None if chosen is None else ChosenInt16.from_document(chosen)
        cascade = document.get("cascade")
        fields["cascade"] = None if cascade is None else CascadeReport.from_document(cascade)
        counts = {name: int(document[name]) for name in ("samples", "measured")}
        return QuantizationReport(**counts, random=bool(document["random"]), **fields)

    def __str__(self) -> str:
        lines = [*summary(self.document()), *quality_warnings(self.document())]
        columns = [
            Column("tensor", shrinks=True),
            *figures("scale", "zero", "SQNR", "alone"),
            Column("range"),
        ]
        rows = [
            [
                _short(each.node or each.name),
                f"{each.scale:.5g}",
                str(each.zero_point),
                _db(each.sqnr_db),
                "" if each.node_sqnr_db is None else _db(each.node_sqnr_db),
                each.method,
            ]
            for each in self.tensors
        ]
        return "\n".join([*lines, format_table(columns, rows)])


def _bounds(pair: Any) -> tuple[float | None, float | None]:
    """Return a range of a document, whose infinite bounds are None."""
    low, high = (None if each is None else float(each) for each in pair)
    return low, high


def summary(document: Mapping[str, Any]) -> list[str]:
    """Summarize the JSON document of a report: the errors of the outputs, and the nodes that add the most noise."""
    used = counted(document["samples"], "random sample" if document["random"] else "sample")
    advice = " (accuracy is meaningless, pass --calibrate)" if document["random"] else ""
    weights = _weights(document.get("weights"), document.get("int16") is not None)
    weights += _cascade(document.get("cascade"))
    if not document["tensors"]:
        return weights or [_nothing(document["kept"].values())]
    lines = [f"quantized with {used}{advice}; compared with float on {document['measured']}:"]
    for each in document["outputs"]:
        lines.append(f"  output {each['name']}: {_output(each)}")
    noisy = sorted(
        (each["alone_db"], each["node"]) for each in document["tensors"] if each.get("alone_db") is not None
    )
    if noisy:
        worst = ", ".join(f"{_short(name)} {_db(db)}" for db, name in noisy[:_LISTED_NODES])
        lines.append(f"  lowest signal-to-noise ratios of single nodes: {worst}")
    return [*lines, *_chosen(document.get("int16")), *_limits(document.get("limits")), *weights]


def _weights(found: Mapping[str, Any] | None, exact: bool) -> list[str]:
    """Return the lines on the bits of weights and on the accuracy relative to 8 bits."""
    if found is None:
        return []
    samples = counted(found["samples"], "held-out sample" if found.get("held_out") else "sample")
    if found["worse"] is None:
        accuracy = f"{_db(found['sqnr_db'])} on {samples}"
    else:
        right, before = found["right"], found["right_before"]
        accuracy = f"{found['worse']} of {samples} labelled worse, {right} right ({before} before)"
    if not found["layers"]:
        return [
            "weights are unchanged: no product multiplies quantized values by constant int8 weights of its own",
            f"  compared with {'the float model' if exact else 'the same weights'}: {accuracy}",
        ]
    bits = sum(each["bits"] * each["weights"] for each in found["layers"])
    mean = bits / sum(each["weights"] for each in found["layers"])
    layers = ", ".join(f"{_short(each['node'])} {each['bits']}" for each in found["layers"])
    return [
        f"weights have {mean:.2f} bits on average, {mean / 8:.0%} of int8",
        f"  compared with {'the float model' if exact else 'int8 weights'}: {accuracy}",
        f"  bits: {layers}",
    ]


def _cascade(found: Mapping[str, Any] | None) -> list[str]:
    """Return the lines on the narrow network of a cascade."""
    if found is None:
        return []
    budget, samples = f"{found['budget']:.3%}", counted(found["samples"], "sample")
    if found["threshold"] is None:
        return [
            f"all requests are computed exactly: on {samples}, no network with fewer bits is expected to take fewer "
            f"cycles if the labels of at most {budget} of the requests may change"
        ]
    layers = ", ".join(f"{_short(each['node'])} {each['bits']}" for each in found["layers"])
    return [
        f"cascade for a budget of {budget}: a network with fewer bits answers if its largest output is at least "
        f"{found['threshold']}",
        f"  on {samples}: {found['fallbacks']:.1%} not accepted, {found['changed']} accepted labels changed; expected "
        f"{found['expected']:.3%}, upper limit {found['limit']:.3%} (90%)",
        f"  estimated cycles: {found['cycles']:,.0f} per request, {found['exact_cycles']:,.0f} if computed exactly",
        f"  bits: {layers}",
    ]


def _chosen(found: Mapping[str, Any] | None) -> list[str]:
    """Return the lines on the results that were chosen to be int16."""
    if found is None:
        return []
    names = ", ".join(_short(name) for name in found["nodes"]) or "none"
    change = f": {_db(found['sqnr_db'])}, {_db(found['before_db'])} with int8" if found["nodes"] else ""
    missed = "" if found["met"] else "; more do not help to meet the accuracy budget"
    return [f"  results in int16: {names}{change}{missed}"]


def _limits(limits: Mapping[str, Any] | None) -> list[str]:
    """Return the lines on the nodes that limit an output, and on its quality with int16."""
    if limits is None:
        return []
    shares = ", ".join(
        f"{_short(each['node'])} {each['share']:.0%}" for each in limits["nodes"][:_LISTED_LIMITS]
    )
    lines = [f"  noise of {limits['output']} from int8 results: {shares or 'none'}"]
    for each in limits["int16"]:
        names, count = each["nodes"], len(each["nodes"])
        arguments = " ".join(f"--int16 {name}" for name in names)
        what = "all results" if list(names) == ["all"] else counted(count, "result")
        lines.append(f"  with {what} in int16: {_db(each['sqnr_db'])} ({arguments})")
    return lines


def _nothing(reasons: Collection[str]) -> str:
    """Return the message for a model without quantized nodes."""
    endless = sum(INFINITE_VALUES in why for why in reasons)
    if endless:
        return (
            f"nothing is quantized: {endless} of {len(reasons)} nodes have infinite numbers on the samples, or as "
            "constants, which int8 cannot represent"
        )
    return f"nothing is quantized: no node can be quantized, {len(reasons)} stay float"


def quality_warnings(document: Mapping[str, Any]) -> list[str]:
    """Return a warning for each output with a low signal-to-noise ratio, and for budgets that permit too much.

    There are no warnings if the samples were random.
    """
    if document["random"]:
        return []
    labels = _budget_warnings(document.get("weights"))
    compared = [
        each
        for each in document["outputs"]
        if each.get("quantized", True) and each.get("left_out", 0) < max(each.get("values", 0), 1)
    ]
    return labels + [
        f"warning: output {each['name']} has a signal-to-noise ratio below {limit} dB ({_db(each['sqnr_db'])}): "
        "calibrate with more representative samples, compute the nodes that add most noise on int16 (--int16, `int16` "
        "in Python), or keep them in float (--keep-float, `keep_float`)"
        for each in compared
        if (limit := _missed_limit(each)) is not None
    ]


def _budget_warnings(found: Mapping[str, Any] | None) -> list[str]:
    """Return a warning for each reason for which an accuracy budget may permit more loss than it seems to."""
    if not found:
        return []
    samples, right, permitted = found["samples"], found["right_before"], found.get("permitted")
    warnings, counts = (
        [],
        f"{right} of {counted(samples, 'sample')} {'is' if right == 1 else 'are'} labelled rightly",
    )
    if right == 0:
        counts = f"none of the {counted(samples, 'sample')} is labelled rightly"
    if right is not None and right < _LEAST_RIGHT * samples:
        warnings.append(
            f"warning: {counts}, so that an accuracy budget in labels permits nearly any loss: check the labels (y), "
            "which are indices of the output's largest element"
        )
    elif right is not None and permitted is not None and permitted > _MOST_PERMITTED * right:
        warnings.append(
            f"warning: {counts}, and the accuracy budget permits that {permitted} of these are not: a signal-to-noise "
            f"ratio has a unit ({permitted}dB)"
        )
    if not found.get("held_out") and found["layers"]:
        warnings.append(
            f"warning: the accuracy budget was checked on the {counted(samples, 'sample')} to which the weights were "
            "fitted, so that the loss on others may be greater: with at least 8 different samples, half are held out"
        )
    return warnings


def _missed_limit(output: Mapping[str, Any]) -> int | None:
    """Return the limit in dB that an output does not reach; None if its quality is sufficient."""
    db, top1 = output["sqnr_db"], output["top1"]
    if db is None or db >= _GOOD_DB:
        return None
    if db < _WARNING_DB:
        return _WARNING_DB
    return None if top1 is not None and top1 >= _GOOD_TOP1 else _GOOD_DB


def log_warnings(name: str, report: QuantizationReport | None, seed: int | None = None) -> None:
    """Log that a model was quantized with random samples, or that the quality of its outputs is low.

    Parameters
    ----------
    name : str
        Name of the model.
    report : QuantizationReport or None
        Report of its quantization; None if it was not quantized, which needs no warning.
    seed : int or None
        Seed of random samples, if it is known.
    """
    if report is None:
        return
    if report.random and report.tensors:
        _log.warning(
            "%s is quantized with %s%s: accuracy is meaningless, pass calibration data (--calibrate)",
            name,
            counted(report.samples, "random sample"),
            "" if seed is None else f" (seed {seed})",
        )
    for line in quality_warnings(report.document()):
        _log.warning("warning: %s: %s", name, line.removeprefix("warning: "))


def _output(output: Mapping[str, Any]) -> str:
    """Return the errors of an output as a string, with the number of values that were not compared."""
    left_out, values = output.get("left_out", 0), output.get("values", 0)
    excluded = f"{left_out:,} of its {values:,} values are infinite or NaN" if left_out else ""
    if not output.get("quantized", True):
        return f"not quantized, computed in float only{excluded and f'; {excluded}'}"
    if left_out and left_out == values:
        return f"not measured: {excluded}"
    top = "" if output["top1"] is None else f", same top 1 in {output['top1']:.1%}"
    rest = f"; {excluded}, the others were compared" if excluded else ""
    return f"{_db(output['sqnr_db'])}, maximum error {output['max_abs']:.4g}{top}{rest}"


def _short(name: str) -> str:
    return name if len(name) < 44 else f"{name[:40]}..."


def _db(value: float | None) -> str:
    return "exact" if value is None else f"{value:.1f} dB"


@dataclass
class OutputErrors:
    """Errors of one tensor, accumulated over samples; values that are infinite or NaN in either graph are excluded."""

    signal: float = 0.0
    noise: float = 0.0
    max_abs: float = 0.0
    rows: int = 0
    same: int = 0
    values: int = 0
    left_out: int = 0

    def add(self, wanted: NDArray, found: NDArray) -> None:
        """Add a sample, given the values in the float graph and the dequantized values in the quantized graph."""
        numbers = np.isfinite(wanted) & np.isfinite(found)
        self.values += numbers.size
        self.left_out += numbers.size - int(numbers.sum())
        wide = np.where(numbers, wanted, 0).astype(np.float64)
        difference = np.where(numbers, found, 0).astype(np.float64) - wide
        self.signal += float(np.square(wide).sum())
        self.noise += float(np.square(difference).sum())
        self.max_abs = max(self.max_abs, float(np.abs(difference).max(initial=0.0)))
        if wanted.ndim and wanted.shape[-1] > 1:
            finite_rows = numbers.all(-1)
            self.rows += int(finite_rows.sum())
            self.same += int((wanted.argmax(-1) == found.argmax(-1))[finite_rows].sum())

    @property
    def sqnr_db(self) -> float | None:
        """Signal-to-noise ratio in dB; None if there is no noise, 0 if there is noise but no signal."""
        if self.noise == 0:
            return None
        return 10 * float(np.log10(self.signal / self.noise)) if self.signal else 0.0

    @property
    def top1(self) -> float | None:
        """Share of the rows whose largest element has the same index in both graphs."""
        return self.same / self.rows if self.rows else None


def output_reports(
    names: Sequence[str], errors: Mapping[str, OutputErrors], quantized: Collection[str]
) -> tuple[OutputReport, ...]:
    """Return the reports of the outputs; `quantized` names the outputs that depend on quantized tensors."""
    return tuple(_report(name, errors[name], name in quantized) for name in names)


def _report(name: str, errors: OutputErrors, quantized: bool) -> OutputReport:
    return OutputReport(
        name, errors.max_abs, errors.sqnr_db, errors.top1, quantized, errors.values, errors.left_out
    )
