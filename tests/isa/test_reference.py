"""The committed ISA reference page equals the generated page."""

from pathlib import Path

from hw.isa.reference import page


def test_reference_page_is_current() -> None:
    committed = Path(__file__).parents[2] / "docs" / "isa.md"
    assert committed.read_text() == page(), "run: .venv/bin/python -m hw.isa.reference > docs/isa.md"
