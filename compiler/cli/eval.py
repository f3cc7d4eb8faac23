"""`mla eval`: measures the accuracy of a model on labeled samples, beside that of its own runtime."""

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.cli.compile import REFERENCE, add_compile, model_source
from compiler.cli.exit_status import report, targets_status
from compiler.cli.options import (
    add_clock,
    add_db,
    add_json,
    add_memory,
    add_performance_targets,
    add_reset,
    add_seed,
    add_target,
    check_files,
    check_reset,
    integer,
    performance_targets,
)
from compiler.util.files import PACKAGE_SUFFIX
from compiler.util.plugin_registry import guarded, is_reference, load_reference
from compiler.util.tables import Column, figures, format_table
from hw.errors import InputError, shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from compiler.cli.inputs import Sample
    from compiler.ir.tensor import Tensor
    from compiler.runtime.compiled import CompiledNetwork

SUMMARY = "measure the accuracy of a model on labeled samples, beside its own runtime"
EXAMPLE = "mla eval network.tflite --data labeled.npz --device golden"

#: Metric that is computed by default: the shares of samples whose label is the best class, or among the best five.
_CLASSES = "classes"
_TOP = 5
#: Types of the output of ArgMax; other integers with one value per sample are quantized numbers.
_INDICES = ("int32", "int64")
#: Bound of the magnitude of labels.
_MAX_LABEL = 1 << 53
Outputs = Mapping[str, "NDArray"]
#: Fields of the report that are not figures of a metric.
_FIELDS = frozenset(
    (
        "schema_version",
        "model",
        "target",
        "device",
        "dram",
        "samples",
        "reference",
        "same_class",
        "cycles_per_sample",
        "rewritten",
        "performance_targets",
        "warnings",
    )
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command-line options of the verb."""
    parser.add_argument(
        "model", metavar="MODEL", type=Path, help=f"a .tflite or .onnx file, a .mla file, {REFERENCE}"
    )
    parser.add_argument(
        "--data",
        metavar="FILE.npz",
        type=Path,
        required=True,
        help="labeled samples: one array per input (or x, for a single input), and the labels in y; the first axis "
        "indexes samples",
    )
    parser.add_argument("--limit", metavar="K", type=integer(1), help="use only the first K samples")
    parser.add_argument(
        "--metric",
        metavar="M",
        default=_CLASSES,
        help="classes: top 1 and top 5 of class scores; mae, mse: mean absolute and mean squared error of the only "
        "output; or module:function, called with the outputs by name and the labels (default: %(default)s)",
    )
    parser.add_argument(
        "--device", choices=("rtl", "golden"), default="rtl", help="device to run on (default: %(default)s)"
    )
    parser.add_argument(
        "--no-reference", action="store_true", help="do not run the model in LiteRT, onnxruntime or PyTorch"
    )
    add_clock(parser, "clock frequency, for targets that are times or rates")
    add_performance_targets(parser)
    add_reset(parser)
    add_compile(parser, fuse=True)
    add_db(parser)
    add_target(parser)
    add_memory(parser)
    add_seed(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run all samples on the device and in the model's own runtime, and print the accuracy of both."""
    from compiler.cache.content_store import ContentStore
    from compiler.cli.inputs import read_labeled, read_labels
    from compiler.cli.run import head, judged_targets, network_of
    from compiler.options import target_lines
    from compiler.runtime.device import open_device
    from compiler.runtime.run_report import document, run_samples
    from compiler.util.progress import log

    check_files(args)
    goals = performance_targets(args)
    metric, classes = _metric(args.metric), args.metric == _CLASSES
    if classes and args.model.suffix.lower() in (
        ".onnx",
        ".tflite",
    ):  # before the model is quantized and compiled
        labels = read_labels(args.data, args.limit)
        if labels.size:  # otherwise the check of the samples fails
            _classes_of(args.data, model_source(args, use_cache=not args.no_cache).outputs, 1, labels)
    network = network_of(args)
    check_reset(args, network)
    samples, labels = read_labeled(args.data, args.limit, network.sample, network.rounding)
    if classes:
        labels = _classes_of(args.data, network.outputs, network.batch, labels)
    rate = args.dram_bytes_per_cycle or network.config.beat_bytes
    with open_device(network, args.device, 1, args.dram_latency, rate, log, throttle=args.throttle) as device:
        proofs = None if args.no_cache else ContentStore()
        result = run_samples(
            device,
            network,
            samples,
            lambda _text: None,
            steadily=False,
            proofs=proofs,
            rate=rate,
            reset=args.reset_state,
        )
    measured = document(network, result, rate, args.clock)
    name, reference = _reference(args, network, samples)
    accuracy = _finite(args.metric, args.device, metric(result.outputs, labels))
    given = {} if reference is None else _finite(args.metric, str(name), metric(reference, labels))
    whole = head(args, args.device, rate) | {
        "samples": len(samples),
        **accuracy,
        "reference": name,
        **{f"reference_{key}": given.get(key) for key in accuracy},
        "same_class": None,
        **{key: measured[key] for key in ("cycles_per_sample", "rewritten")},
        "performance_targets": judged_targets(goals, measured),
    }
    if args.metric == _CLASSES and reference is not None:
        (scores,), (wanted,) = result.outputs.values(), reference.values()
        whole["same_class"] = int((_best(scores)[:, 0] == _best(wanted)[:, 0]).sum())
    lines = [_table(whole, list(accuracy), classes), *target_lines(whole["performance_targets"])]
    report(whole, "\n".join(lines), args.json)
    return targets_status(whole["performance_targets"])


def _metric(name: str) -> Callable[[Outputs, "NDArray"], dict[str, float]]:
    """Return a function from outputs and labels to figures by name.

    Raises
    ------
    InputError
        The metric is unknown, or its module cannot be imported; the returned function also raises it if the metric
        fails or does not return a number.
    """
    built_in = {_CLASSES: _classes, "mae": _mae, "mse": _mse}
    if name in built_in:
        return built_in[name]
    if not is_reference(name):
        raise InputError(f"--metric must be {', '.join(built_in)} or module:function, not {shown(name)}")
    found = load_reference(name, "functions")
    if not callable(found):
        raise InputError(f"--metric {name} must be a function of outputs and labels, not {shown(found)}")
    function: Callable[..., Any] = found
    key = name.rpartition(":")[2]
    if key in _FIELDS:
        raise InputError(f"--metric {name}: {key} is another field of the report: rename the function")

    def figures(outputs: Outputs, labels: "NDArray") -> dict[str, float]:
        with redirect_stdout(sys.stderr):  # standard output is for results
            value = guarded(lambda: float(function(dict(outputs), labels)), f"--metric {name} failed")
        return {key: value}

    return figures


def _finite(metric: str, name: str, figures: dict[str, float]) -> dict[str, float]:
    """Return the figures of a metric; raise InputError if one is infinite or NaN, which JSON cannot represent."""
    for value in figures.values():
        if not math.isfinite(value):
            raise InputError(f"--metric {metric}: the result for {name} must be a finite number, not {value}")
    return figures


def _classes_of(
    path: Path, outputs: "Sequence[Tensor]", batch: int, labels: "NDArray"
) -> "NDArray[np.int64]":
    """Return the class of each sample, given as an integer, an integral float, or a one-hot row.

    Raises
    ------
    InputError
        The model does not have one output of class scores or of the index of a class, or a label is not a class.
    """
    import numpy as np

    other = "choose another --metric"
    if len(outputs) != 1:
        raise InputError(f"--metric classes needs one output, the model has {len(outputs)}: {other}")
    (tensor,) = outputs
    shape = [tensor.shape[0] // batch, *tensor.shape[1:]] if tensor.shape else []
    if sum(size > 1 for size in shape) > 1:
        raise InputError(
            f"--metric classes needs one vector of class scores per sample, but output {shown(tensor.name)} has shape "
            f"{shape}: choose --metric module:function"
        )
    values = math.prod(shape)
    indices = values == 1 and tensor.dtype in _INDICES
    if values < 2 and not indices:
        raise InputError(
            f"--metric classes needs class scores, output {shown(tensor.name)} has one value: {other}"
        )
    found = _labels(labels, None if indices else values)
    if found is None:
        raise InputError(
            f"{path}: labels y must be integers, one per sample, or one-hot rows of {values} classes, not "
            f"{labels.dtype}{list(labels.shape)}{' with other values' if labels.dtype.kind == 'f' else ''}"
        )
    bad = np.flatnonzero((found < 0) | (found >= (math.inf if indices else values)))
    if bad.size:
        limit = "" if indices else f" and below {values}, the number of values of output {shown(tensor.name)}"
        raise InputError(f"{path}: label {found[bad[0]]} of sample {bad[0]} must be at least 0{limit}")
    return found


def _labels(labels: "NDArray", classes: int | None) -> "NDArray[np.int64] | None":
    """Return labels as one integer per sample; None if they are not classes."""
    import numpy as np

    if not labels.size or labels.dtype.kind not in "biuf" or not np.isfinite(labels).all():
        return None
    rows = labels.reshape(len(labels), -1)
    if rows.shape[1] == 1 and labels.dtype.kind != "b":
        # Labels beyond int64 are no classes; the bound also keeps the conversion of floats defined.
        whole = (np.rint(rows) == rows).all() and (np.abs(rows.astype(np.float64)) < _MAX_LABEL).all()
        return rows[:, 0].astype(np.int64) if whole else None
    if rows.shape[1] != classes or not (((rows == 0) | (rows == 1)).all() and (rows.sum(1) == 1).all()):
        return None
    return rows.argmax(1).astype(np.int64)


def _best(values: "NDArray") -> "NDArray[np.int64]":
    """Return the classes of each sample by decreasing score, or the only class if the output is its index.

    Of equal scores, the first class is first.
    """
    import numpy as np

    flat = values.reshape(len(values), -1)
    if flat.shape[1] == 1:
        return flat.astype(np.int64)
    return np.argsort(-flat.astype(np.float64), axis=1, kind="stable")


def _classes(outputs: Outputs, labels: "NDArray") -> dict[str, float]:
    (values,) = outputs.values()
    best = _best(values)
    hits = best[:, :_TOP] == labels[:, None]
    top = {"top1": float(hits[:, 0].mean())}
    return top if best.shape[1] == 1 else {**top, "top5": float(hits.any(1).mean())}


def _mae(outputs: Outputs, labels: "NDArray") -> dict[str, float]:
    import numpy as np

    return {"mae": float(np.abs(_errors(outputs, labels, "mae")).mean())}


def _mse(outputs: Outputs, labels: "NDArray") -> dict[str, float]:
    import numpy as np

    return {"mse": float(np.square(_errors(outputs, labels, "mse")).mean())}


def _errors(outputs: Outputs, labels: "NDArray", name: str) -> "NDArray[np.float64]":
    """Return the differences of the only output and the labels."""
    import numpy as np

    if len(outputs) != 1:
        raise InputError(f"--metric {name} needs one output, the model has {len(outputs)}")
    ((output, values),) = outputs.items()
    if values.size != labels.size or labels.dtype.kind not in "iuf":
        raise InputError(
            f"--metric {name}: labels y must be numbers with the shape of output {shown(output)}, "
            f"{list(values.shape)}, not {labels.dtype}{list(labels.shape)}"
        )
    return values.astype(np.float64).reshape(-1) - labels.astype(np.float64).reshape(-1)


def _reference(
    args: argparse.Namespace, network: "CompiledNetwork", samples: "list[Sample]"
) -> "tuple[str | None, dict[str, NDArray] | None]":
    """Return the name of the model's own runtime and its outputs, or None for both if no runtime is used."""
    from compiler.cli.inputs import read_bound
    from compiler.runtime.own_runtime import own_runtime
    from compiler.runtime.run_report import stack_samples
    from compiler.util.progress import log, progress

    if args.no_reference:
        return None, None
    if args.model.suffix.lower() == PACKAGE_SUFFIX:
        log(f"{args.model}: no comparison, as compiled networks have no runtime to compare with")
        return None, None
    names = [tensor.name for tensor in network.outputs]
    name, infer = own_runtime(
        args.model, network.rounding, names, read_bound(args.bind), reset=args.reset_state
    )
    rows = []
    with progress(f"running {name}", len(samples), "samples") as task:
        for sample in samples:
            rows.append(infer(sample))
            task.advance()
    return name, {each: stack_samples([row[each] for row in rows]) for each in names}


def _table(document: dict[str, Any], names: list[str], shares: bool) -> str:
    """Format a row for the accelerator and one for the model's own runtime; figures that are shares in percent."""
    from compiler.cli.run_report import approximation_lines
    from compiler.util.tables import counted

    def cells(prefix: str) -> list[str]:
        values = (document[prefix + name] for name in names)
        return ["-" if value is None else f"{value:.2%}" if shares else f"{value:.6g}" for value in values]

    rows = [[f"{document['target']} ({document['device']})", *cells("")]]
    if document["reference"]:
        rows.append([document["reference"], *cells("reference_")])
    lines = [f"{document['model']}: {counted(document['samples'], 'sample')}"]
    lines.append(format_table([Column(""), *figures(*names)], rows))
    if document["same_class"] is not None:
        lines.append(f"same class in {document['same_class']:,} of {document['samples']:,} samples")
    if document["cycles_per_sample"] is not None:
        lines.append(f"{document['cycles_per_sample']:,.0f} cycles per sample")
    lines += approximation_lines(document["rewritten"])
    return "\n".join(lines)
