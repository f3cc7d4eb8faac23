"""Tables on the terminal and in files, drawn by `rich`.

On a terminal a table fits its width: long cells of one column lose their middle. Elsewhere it is as wide as it is, in
plain text. There are no colours where there is no terminal, or where NO_COLOR is set.
"""

import io
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from compiler.util.shorten import shorten_middle

#: Cells of the column that shrinks keep at least so many characters.
_LEAST = 12
_GAP = 2
_HEADING, _SUM = "bold", "bold"


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Parameters
    ----------
    heading : str
        What its cells are, above them.
    right : bool
        Cells are aligned to the right, as figures are.
    shrinks : bool
        Cells lose their middle where the table is too wide for the terminal.
    """

    heading: str
    right: bool = False
    shrinks: bool = False


def figures(*headings: str) -> list[Column]:
    """Columns of numbers."""
    return [Column(heading, right=True) for heading in headings]


def format_table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    *,
    total: bool = False,
    stream: IO[str] | None = None,
) -> str:
    """The lines of a table, without a newline at the end.

    Parameters
    ----------
    columns : sequence of Column
        From left to right.
    rows : sequence of sequences of str
        The cells of each row, as many as there are columns.
    total : bool
        The last row is a sum of the others.
    stream : file or None
        Where the table is printed, which says its width and whether there are colours; None: standard output.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = is_terminal(sys.stdout if stream is None else stream)
    widths = [
        max(cell_len(line[place]) for line in [[column.heading for column in columns], *rows])
        for place in range(len(columns))
    ]
    natural = sum(widths) + _GAP * (len(columns) - 1)
    screen = shutil.get_terminal_size().columns
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style=_HEADING)
    for column, width in zip(columns, widths, strict=True):
        justify = "right" if column.right else "left"
        table.add_column(Text(column.heading), justify=justify, no_wrap=True, min_width=width)
        if terminal and column.shrinks and natural > screen:
            table.columns[-1].min_width = max(width - (natural - screen), _LEAST)
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
    """Whether a person reads what is written to a stream as it comes."""
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False
