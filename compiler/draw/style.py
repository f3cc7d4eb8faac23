"""Colours of the pictures, and how wide text is."""

from typing import Any

from hw.isa.counters import CAUSES

#: Fill and outline of each kind of node.
COLOURS = {
    "input": ("#e8f1ec", "#4a7c62"),
    "output": ("#e8f1ec", "#4a7c62"),
    "constant": ("#f5f1e6", "#a08a52"),
    "operator": ("#eaf1fb", "#4472b5"),
    "host": ("#fbe9e7", "#c0503c"),
    "control": ("#fbf3d9", "#b58a1b"),
    "layer": ("#eaf1fb", "#4472b5"),
    "buffer": ("#f1f2f4", "#7b8491"),
    "load": ("#dff2ea", "#2c8c69"),
    "matrix": ("#dfeafb", "#2f67c0"),
    "fuse": ("#fdeedd", "#d07f1f"),
    "store": ("#f0e6f8", "#8455ab"),
    "program": ("#eaf1fb", "#4472b5"),
}
#: One for each cause of cycles: work is green, what waits is not.
CAUSE_COLOURS = dict(
    zip(
        CAUSES,
        ("#2e9e5b", "#a3d9b8", "#e0b03a", "#e8743b", "#d9534f", "#b0568f", "#7a6bd1", "#3f7fd9", "#5aa9c9", "#c9c9c9"),
        strict=True,
    )
)  # fmt: skip
#: Operators that say little about the machine's work are paler.
QUIET = ("#f4f5f7", "#8a93a0")
#: Operators of the array.
HEAVY = ("conv2d", "depthwise_conv2d", "conv_transpose2d", "dense", "matmul")

INK, SOFT, LINE = "#1f2733", "#5d6773", "#97a1ae"
FONT = "Inter, 'Helvetica Neue', Helvetica, Arial, 'Liberation Sans', sans-serif"

_NARROW, _WIDE = "ijl.,:;|'!ft()[]I /", "mwMW@%≈"


def colours(data: dict[str, Any]) -> tuple[str, str]:
    """Fill and outline of a node."""
    ops = data.get("ops", [data.get("op", "")])
    if data["kind"] in ("operator", "layer") and not any(op in HEAVY for op in ops):
        return QUIET
    return COLOURS[data["kind"]]


def text_width(text: str, size: float) -> float:
    """About how wide a text is in a font without serifs."""
    total = sum(0.32 if c in _NARROW else 0.86 if c in _WIDE else 0.67 if c.isupper() else 0.56 for c in text)
    return total * size


def shortened(text: str, width: float, size: float) -> str:
    """A text cut to a width; names of converters are long."""
    if text_width(text, size) <= width + 0.5:
        return text
    while text and text_width(text + "…", size) > width:
        text = text[:-1]
    return text.rstrip(" ,;/") + "…"
