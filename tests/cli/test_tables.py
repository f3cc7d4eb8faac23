"""Tables are plain and of full width in files, fit the width of terminals, and use colors only if requested."""

import io

import pytest

from compiler.util.files import print_text
from compiler.util.tables import Column, figures, format_table, shorten_middle

COLUMNS = [Column("layer", shrinks=True), *figures("cycles"), Column("bound")]
LONG = "functional_1/depthwise_conv2d_12/BiasAdd;functional_1/depthwise_conv2d_12/weights_12"
ROWS = [["a[b]c", "1,234", "bus"], [LONG, "7", "compute"]]


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_file_output_is_plain_and_full_width() -> None:
    text = format_table(COLUMNS, ROWS, total=True, stream=io.StringIO())
    width = len(LONG)
    assert text.splitlines() == [
        f"{'layer':<{width}}  cycles  bound",
        f"{'a[b]c':<{width}}   1,234  bus",
        f"{LONG}       7  compute",
    ]


def test_names_do_not_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [["a\x1b[31mb\nc\x07", "1", "bus"]]
    assert format_table(COLUMNS, rows, stream=Terminal()).splitlines()[1].startswith(r"a\x1b[31mb\nc\x07")
    print_text("\x1b[1mbold\x1b[0m \x1b]0;title\x07\x9b2J é\t\n")
    assert capsys.readouterr().out == "\x1b[1mbold\x1b[0m \\x1b]0;title\\x07\\x9b2J é\t\n\n"


@pytest.mark.parametrize("variable", ["NO_COLOR", "TERM", None])
def test_terminal_output_shortens_names_in_the_middle(
    variable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable:
        monkeypatch.setenv(variable, "dumb")
    text = format_table(COLUMNS, ROWS, stream=Terminal())
    assert ("\x1b[" in text) == (variable is None)
    if variable:
        assert all(len(line) <= 60 for line in text.splitlines())
        last = text.splitlines()[-1]
        assert last.startswith("functional_1/") and "…" in last and "weights_12  " in last


def test_wide_characters_count_two_columns() -> None:
    text = format_table([Column("name"), *figures("n")], [["卷积", "1"], ["conv", "2"]], stream=io.StringIO())
    assert text.splitlines() == ["name  n", "卷积  1", "conv  2"]


def test_empty_table_has_heading() -> None:
    assert format_table(COLUMNS, [], stream=io.StringIO()) == "layer  cycles  bound"


def test_shorten_middle() -> None:
    assert shorten_middle("abcdefghij", lambda text: len(text) <= 10) == "abcdefghij"
    assert shorten_middle("abcdefghij", lambda text: len(text) <= 6) == "abc…ij"
    assert shorten_middle("abcdefghij", lambda text: len(text) <= 1) == "…"
    names = [f"depthwise_conv2d_{number}" for number in range(20)]
    assert len({shorten_middle(name, lambda text: len(text) <= 14) for name in names}) == len(names)
