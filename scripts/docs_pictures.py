"""Pictures of the compiler's stages, for docs/compiler.md: the digits network from its file to its timeline."""

from compiler.api import compile
from compiler.trace import CompilationTrace
from compiler.visualize.graphs import view_of
from compiler.visualize.svg import to_svg
from scripts.networks.digits import MODEL

#: Stages that are drawn.
STAGES = ("imported", "layers", "scheduled", "placed", "timeline")


def pictures() -> dict[str, str]:
    """SVG files by their name in docs/pictures."""
    record = CompilationTrace()
    compile(MODEL, "n16", record=record)
    return {f"digits_{stage}.svg": to_svg(view_of(record, stage)) for stage in STAGES}
