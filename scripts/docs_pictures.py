"""Pictures of the documentation: block diagrams, and the compiler stages of the digits network."""

from compiler.api import compile
from compiler.pipeline import CompilationTrace
from compiler.visualize.formats import to_svg
from compiler.visualize.stages import view_of
from scripts.docs_diagrams import diagrams
from scripts.networks.digits import MODEL

#: Stages to draw.
STAGES = ("imported", "layers", "scheduled", "placed", "timeline")


def pictures() -> dict[str, str]:
    """Return the SVG files by their names in docs/pictures."""
    record = CompilationTrace()
    compile(MODEL, "n16", record=record)
    stages = {f"digits_{stage}.svg": to_svg(view_of(record, stage)) for stage in STAGES}
    return diagrams() | stages
