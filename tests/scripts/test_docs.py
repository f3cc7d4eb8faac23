"""The committed documentation equals the output of `make docs`."""

import pytest

from compiler.ir.ops import TABLE_OPS
from compiler.quantize.plan import quantizable
from scripts import docs, docs_operators
from scripts.docs_operators import BEGIN, END


def test_generated_pages_are_current():
    for name, text in docs.generated().items():
        assert (docs.DOCS / name).read_text() == text, f"docs/{name}: run `make docs`"


def test_operator_table_replaces_text_between_markers():
    made = docs_operators.page(f"before\n{BEGIN}\nyesterday's\n{END}\nafter\n")
    assert made.startswith(f"before\n{BEGIN}\n| operator |")
    assert made.endswith(f"\n{END}\nafter\n")
    assert "yesterday" not in made
    assert docs_operators.page(made) == made
    with pytest.raises(ValueError, match="must have the lines"):
        docs_operators.page("nothing")


def test_table_lists_the_units_of_operators():
    lines = {
        line.split("`")[1]: line
        for line in docs_operators.page(f"{BEGIN}{END}").splitlines()
        if line[:3] == "| `"
    }
    assert lines["conv2d"].endswith("| MATRIX and FUSE, with fused epilogue |")
    assert lines["mish"].endswith("| FUSE: lookup table, separately or in an epilogue |")
    assert lines["softmax"].endswith("| FUSE |")
    assert lines["quantize"].endswith("| FUSE |")
    assert lines["equal"].endswith("| FUSE |")
    assert lines["floor_div"].endswith("| host |")


@pytest.mark.parametrize("op", sorted(TABLE_OPS - {"requantize", "table"}))
def test_table_operators_are_quantizable(op):
    """Every operator implemented by a table is also listed as quantizable."""
    assert quantizable(op)
