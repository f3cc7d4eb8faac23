"""Each edit of the program in docs/llm-program.md has the effect and the cycles that the page states."""

import re
from dataclasses import replace
from pathlib import Path

from compiler.llm.tokens.program_tokens import decode_edits
from compiler.options import CompileOptions
from compiler.profile.measurement import HardwareProfile, Measurement
from compiler.runtime.program_text import program_text
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from compiler.tuning.edits.edit import Edit
from compiler.tuning.edits.editable_programs import EditablePrograms
from compiler.tuning.measure.measurer import Measurer
from hw.config import load_target

PAGE = Path(__file__).parents[2] / "docs" / "llm-program.md"
LAYER = CalibrationNetwork((8, 8, 48), (CalibrationOp("mul"),))
#: Fields of the best known schedule.
FIELDS = {
    "rows": 56,
    "x_buffers": 3,
    "y_buffers": 4,
    "prefetch": 16,
    "same_program_as_previous": True,
    "own_counter_tag": False,
}
#: Words of edits that contain spaces.
HEADS = re.compile(r"(split at|move at) ")


def _answers_of_page() -> list[tuple[list[Edit], int]]:
    """Return the answers on the page, each with its cycles; the first answer is empty."""
    rows = re.findall(r"^\| (?:`([^`]*)`)? ?\| .* \| ([\d,]+) \|$", PAGE.read_text("utf-8"), re.M)
    found = []
    for answer, cycles in rows:
        words = [
            each.replace("_", " ")
            for each in HEADS.sub(lambda m: m[1].replace(" ", "_") + " ", answer).split()
        ]
        found.append((list(decode_edits([*words, "end"])) if words else [], int(cycles.replace(",", ""))))
    return found


def test_answers_take_the_cycles_of_the_page() -> None:
    answers = _answers_of_page()
    assert len(answers) == 7 and answers[0][0] == [] and all(edits for edits, _ in answers[1:])
    with Measurer(
        LAYER.graph(), HardwareProfile(load_target("n16")), CompileOptions(rounding="reference")
    ) as measurer:
        first = measurer.first.schedule
        ((name, layer),) = first.layers.items()
        schedule = replace(first, layers={name: replace(layer, **FIELDS)})
        editable, edits = EditablePrograms(measurer.prepared.network(schedule)), []
        (piece,) = editable.programs
        for more, cycles in answers:
            edits += more
            (result,) = measurer.measure([editable.with_edits({piece.name: edits}) if edits else schedule])
            assert isinstance(result, Measurement) and result.valid
            assert result.cycles == cycles
        text = program_text(editable.program(piece.name, edits))
    (shown,) = re.findall(r"^```\n((?: {4}.*\n)+)```$", PAGE.read_text("utf-8"), re.M)
    plain = re.sub(r" +;.*$", "", text, flags=re.M)
    assert shown in plain + "\n"
