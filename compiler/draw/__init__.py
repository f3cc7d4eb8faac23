"""Views of the compiler's stages as text, JSON, Graphviz's language, and pictures."""

from collections.abc import Callable

from compiler.draw.dot import to_dot
from compiler.draw.picture import to_svg
from compiler.draw.text import to_json, to_text
from compiler.views.view import View

#: By the name that `mla graph --format` takes.
FORMATS: dict[str, Callable[[View], str]] = {
    "text": to_text, "dot": to_dot, "svg": to_svg, "json": to_json,
}  # fmt: skip

__all__ = ["FORMATS", "to_dot", "to_json", "to_svg", "to_text"]
