"""Output formats of views: text, JSON, Graphviz and SVG."""

from collections.abc import Callable

from compiler.visualize.graphs.stages import to_svg
from compiler.visualize.graphs.view import View
from compiler.visualize.svg.text_formats import to_dot, to_json, to_text

#: Writers by the name used in `mla graph --format`.
FORMATS: dict[str, Callable[[View], str]] = {
    "text": to_text,
    "dot": to_dot,
    "svg": to_svg,
    "json": to_json,
}

__all__ = ["FORMATS", "to_dot", "to_json", "to_svg", "to_text"]
