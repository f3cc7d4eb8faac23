"""Formatting of the report of `mla run` as text: layers, memory, time, values."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.tensor import Tensor
from compiler.quantize.report import summary
from compiler.util.tables import Column, counted, figures, format_table


def clock_lines(document: Mapping[str, Any]) -> list[str]:
    """Return a line with time and power, or no line if `--clock` or measured cycles are missing."""
    if document["milliseconds"] is None:
        return []
    host = ", excluding host operators" if document["host_ops"] else ""
    return [
        f"at {document['clock_mhz']:g} MHz: {document['milliseconds']:,.4g} ms per inference, "
        f"{document['inferences_per_second']:,.1f} inferences per second{host}; about "
        f"{document['milliwatts']:,.3g} mW, estimated for a 45 nm process"
    ]


def approximation_lines(rewritten: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one line for each node of the JSON field `rewritten` whose results differ from the model's."""
    return [
        f"approximated: {each['node']} ({each['op']}): {each['change']}"
        for each in rewritten
        if each.get("bound") is not None
    ]


def memory_lines(memory: Mapping[str, Any]) -> list[str]:
    """Format the JSON field `memory` as two lines: on-chip memories and DRAM."""
    store, dram = memory["instruction_store"], memory["dram"]
    reloaded = "" if store["resident"] else " (reloaded at run time)"
    return [
        f"memory: scratchpad {_peak(memory['scratchpad'])}, accumulator {_peak(memory['accumulator'])}, instruction "
        f"store {store['words']:,} of {store['available']:,} words{reloaded}",
        f"DRAM: weights {dram['weights']:,}, inputs {dram['inputs']:,}, outputs {dram['outputs']:,}, intermediate "
        f"buffers {dram['intermediate']:,}, total {dram['total']:,} bytes",
    ]


def _peak(use: Mapping[str, Any]) -> str:
    """Format the peak use and the size of a memory."""
    if use["peak_bytes"] is None:
        return f"unknown of {use['bytes']:,} bytes"
    return f"{use['peak_bytes']:,} of {use['bytes']:,} bytes ({use['peak_bytes'] / use['bytes']:.0%})"


def table(document: Mapping[str, Any]) -> str:
    """Format the cycles per layer, then totals, outputs and memory use."""
    lines = [
        f"{document['model']} on {document['target']} ({document['device']}), "
        f"{counted(document['samples'], 'sample')}",
    ]
    if document["cycles"] is None:
        lines += [f"  {short_name(layer)}" for layer in document["layers"]]
    else:
        lines += _cycles(document) + clock_lines(document)
    lines += [
        f"{each['program']} ran {counted(each['runs'], 'time')}, "
        f"{'otherwise' if each['guard'] is None else 'if ' + each['guard']}"
        for each in document.get("variants", ())
    ]
    lines += [
        f"output {name}: {each['dtype']}{each['shape']}, sha256 {each['sha256'][:16]}"
        for name, each in document["outputs"].items()
    ]
    lines += approximation_lines(document["rewritten"])
    lines += memory_lines(document["memory"])
    if document.get("quantization"):
        lines += summary(document["quantization"])
    return "\n".join(lines)


def _cycles(document: Mapping[str, Any]) -> list[str]:
    total = document["cycles"]
    columns = [
        Column("layer", shrinks=True),
        *figures("cycles", "share", "floor", "utilization"),
        Column("bound"),
    ]
    rows = [
        [
            short_name(layer),
            f"{layer['cycles']:,}",
            f"{layer['cycles'] / max(total, 1):.1%}",
            f"{layer['floor_cycles']:,}",
            "" if layer["utilization"] is None else f"{layer['utilization']:.1%}",
            layer["bound"],
        ]
        for layer in document["layers"]
    ]
    where = ", ".join(
        f"{cause} {cycles / total:.1%}"
        for cause, cycles in (document["where"] or {}).items()
        if cycles * 1000 > total
    )
    steady = document["steady_cycles_per_sample"]
    steady = (
        "not measured back to back (has host operators)" if steady is None else f"{steady:,.0f} back to back"
    )
    return [
        format_table(columns, rows),
        f"{document['cycles_per_sample']:,.0f} cycles per sample, {steady}; "
        f"utilization {document['utilization'] or 0:.1%}, "
        f"lower bound {document['floor_cycles'] // document['samples']:,}, "
        f"layerwise {document['floor_layerwise_cycles'] // document['samples']:,}",
        f"cycles by cause: {where}",
        f"{document['load_cycles']:,} cycles to load the programs; {document['dram_bytes_read']:,} bytes read, "
        f"{document['dram_bytes_written']:,} written; {document['energy_uj']:.1f} uJ",
    ]


def short_name(layer: Mapping[str, Any]) -> str:
    """Return the name of a layer's first node, with the number of its other nodes."""
    first, *rest = layer["names"]
    return first + (f" + {len(rest)}" if rest else "")


#: Maximum number of samples to print.
MAX_SAMPLES = 4
#: Number of classes listed per sample.
TOP_CLASSES = 5
#: Array size above which NumPy abbreviates the values, and line width in characters.
_THRESHOLD, _WIDTH = 64, 110


def show_outputs(tensors: Sequence[Tensor], outputs: Mapping[str, NDArray]) -> list[str]:
    """Return lines with the values of the first samples and the top classes of class scores.

    Parameters
    ----------
    tensors : sequence of Tensor
        Outputs of the model; their quantization determines the values that integers represent.
    outputs : dict of array
        Values by output name; the first axis indexes samples.
    """
    lines = []
    for tensor in tensors:
        samples = outputs[tensor.name]
        best = top_classes(tensor, samples[:MAX_SAMPLES])
        for number, sample in enumerate(samples[:MAX_SAMPLES]):
            lines += _values(tensor.name, number, sample)
            if best is not None:
                lines.append(f"  top {len(best[number])}: " + ", ".join(map(_class, best[number])))
        left_out = len(samples) - MAX_SAMPLES
        if left_out > 0:
            lines.append(f"{tensor.name}: {left_out:,} more samples are not shown (--out writes all)")
    return lines


def top_classes(tensor: Tensor, samples: NDArray) -> list[list[dict[str, Any]]] | None:
    """Return the top classes per sample, best first; None if the output is not a vector of class scores.

    Class scores are one vector per sample, floating-point or quantized. Each entry has the index of the class
    (`class`), its score as a real number (`score`), and the integer that represents the score (`stored`; None for
    floating-point outputs).
    """
    first = samples[0]
    one_axis = first.size > 1 and max(first.shape) == first.size
    if not one_axis or (first.dtype.kind != "f" and tensor.quantization is None):
        return None
    return [_best(tensor, sample.reshape(-1)) for sample in samples]


def _best(tensor: Tensor, scores: NDArray) -> list[dict[str, Any]]:
    q = tensor.quantization
    real = scores if q is None or not q.whole else q.dequantized(scores)
    stored = scores.dtype.kind != "f"
    return [
        {
            "class": int(index),
            "score": float(real[index]),
            "stored": int(scores[index]) if stored else None,
        }
        for index in np.argsort(-scores.astype(np.float64), kind="stable")[:TOP_CLASSES]
    ]


def _values(name: str, number: int, sample: NDArray) -> list[str]:
    """Format the values of a sample, on one line if they fit."""
    text = np.array2string(
        np.asarray(sample), max_line_width=_WIDTH, threshold=_THRESHOLD, separator=", "
    ).splitlines()
    title = f"{name}, sample {number}:"
    return [f"{title} {text[0]}"] if len(text) == 1 else [title, *(f"  {line}" for line in text)]


def _class(best: Mapping[str, Any]) -> str:
    stored = "" if best["stored"] is None else f", stored {best['stored']}"
    return f"class {best['class']} ({best['score']:.4g}{stored})"
