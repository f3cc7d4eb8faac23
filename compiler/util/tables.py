"""Formatting of text tables, with long names shortened in the middle."""

import io
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO

from hw.errors import printable

ELLIPSIS = "…"
#: Share of the remaining characters that are taken from the start of the name.
_HEAD = 0.6


def counted(count: int, noun: str) -> str:
    """Format a count with its noun, in the plural unless the count is one."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def shorten_middle(text: str, fits: Callable[[str], bool]) -> str:
    """Return a text unchanged if it fits; otherwise remove as little as possible from its middle, so that it fits.

    Parameters
    ----------
    text : str
        Text to shorten, such as the name of a layer.
    fits : callable
        Function that returns True if a text is short enough; it must be monotonic in the length of the text.
    """
    if fits(text):
        return text
    low, high = 0, len(text) - 1  # `low` characters are known to fit
    while low < high:
        length = (low + high + 1) // 2
        low, high = (length, high) if fits(_without_middle(text, length)) else (low, length - 1)
    return _without_middle(text, low)


def _without_middle(text: str, length: int) -> str:
    head = round(length * _HEAD)
    tail = length - head
    return text[:head].rstrip() + ELLIPSIS + text[len(text) - tail :].lstrip()


#: Minimum width of the shrinking column in characters.
_MIN_WIDTH = 12
_GAP = 2
_HEADING, _SUM = "bold", "bold"


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Parameters
    ----------
    heading : str
        Text above the cells.
    right : bool
        True to align the cells to the right, as for numbers.
    shrinks : bool
        True to shorten the cells if the table is too wide for the terminal.
    """

    heading: str
    right: bool = False
    shrinks: bool = False


def figures(*headings: str) -> list[Column]:
    """Return right-aligned columns with the given headings."""
    return [Column(heading, right=True) for heading in headings]


def format_table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    *,
    total: bool = False,
    stream: IO[str] | None = None,
) -> str:
    """Format a table as text without a final newline.

    Parameters
    ----------
    columns : sequence of Column
        Columns of the table from left to right.
    rows : sequence of sequences of str
        Cells of each row, one per column.
    total : bool
        True if the last row contains the totals, which are emphasized.
    stream : file or None
        Stream to which the text will be written, which determines width and colors; None: standard output.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = [[printable(text).replace("\x1b", r"\x1b").replace("\n", r"\n") for text in row] for row in rows]
    terminal = is_terminal(sys.stdout if stream is None else stream)
    widths = [
        max(cell_len(line[index]) for line in [[column.heading for column in columns], *rows])
        for index in range(len(columns))
    ]
    natural = sum(widths) + _GAP * (len(columns) - 1)
    screen = shutil.get_terminal_size().columns
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style=_HEADING)
    for column, width in zip(columns, widths, strict=True):
        justify = "right" if column.right else "left"
        table.add_column(Text(column.heading), justify=justify, no_wrap=True, min_width=width)
        if terminal and column.shrinks and natural > screen:
            table.columns[-1].min_width = max(width - (natural - screen), _MIN_WIDTH)
    for number, row in enumerate(rows, 1):
        cells = []
        for text, column in zip(row, table.columns, strict=True):
            room = column.min_width or 0
            cells.append(Text(shorten_middle(text, lambda each, room=room: cell_len(each) <= room)))
        table.add_row(*cells, style=_SUM if total and number == len(rows) else None)
    out = io.StringIO()
    colours = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    console = Console(
        file=out,
        force_terminal=colours,
        color_system="standard" if colours else None,
        no_color=not colours,
        width=natural + _GAP,
        legacy_windows=False,
        highlight=False,
    )
    console.print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def is_terminal(stream: IO[str]) -> bool:
    """Return True if a stream is an interactive terminal."""
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False
