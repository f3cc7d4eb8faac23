"""Reader and writer of Verilator's coverage data.

Each line is `C '<key><value>...' count`, where a byte 1 precedes each key and a byte 2 precedes each value.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hw.errors import InputError

CHIP = "chip.v"
_HEAD = "# SystemC::Coverage-3\n"


@dataclass(frozen=True, order=True)
class VerilatorPoint:
    """Coverage point of Verilator.

    Parameters
    ----------
    line, column : int
        Position in the Verilog text, counted from 1.
    page : str
        Type of coverage, `v_line` or `v_branch`.
    kind : str
        Kind of the point: block, case, if, elsif, else, cond_then or cond_else.
    module : str
        Name of the Verilog module.
    lines : str
        Verilog lines that are executed when the point is counted, for example "3-4,6"; empty for an `else` without a
        body.
    """

    line: int
    column: int
    page: str
    kind: str
    module: str
    lines: str = ""


def read_counts(path: Path) -> Counter[VerilatorPoint]:
    """Read the counts of the chip's points from a data file; the counts of all instances of a module are summed.

    Raises
    ------
    InputError
        The file cannot be read or is not coverage data.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as coverage data: {error}") from error
    counts: Counter[VerilatorPoint] = Counter()
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#") or not line:
            continue
        try:
            found = _point(line)
        except (KeyError, ValueError) as error:
            raise InputError(f"{path}, line {number}: not a count of Verilator's coverage data") from error
        if found:
            counts[found[0]] += found[1]
    return counts


def _point(line: str) -> tuple[VerilatorPoint, int] | None:
    """Parse a line of data into a point and its count; return None if the point is not part of the chip."""
    start, keys, count = line[:3], *line[3:].rsplit("' ", 1)
    if start != "C '":
        raise ValueError("no count")
    values = dict(pair.split("\x02") for pair in keys.split("\x01") if pair)
    if Path(values["f"]).name != CHIP:
        return None
    page, _, module = values["page"].partition("/")
    point = VerilatorPoint(int(values["l"]), int(values["n"]), page, values["o"], module, values.get("S", ""))
    return point, int(count)


def write_counts(path: Path, counts: Counter[VerilatorPoint]) -> None:
    """Write counts in Verilator's format; the file is replaced atomically."""
    part = path.with_name(path.name + ".part")
    part.write_text(_HEAD + "".join(_lines(counts)))
    part.replace(path)


def _lines(counts: Counter[VerilatorPoint]) -> Iterator[str]:
    for point in sorted(counts):
        values = {
            "f": CHIP,
            "l": point.line,
            "n": point.column,
            "page": f"{point.page}/{point.module}",
            "o": point.kind,
            "S": point.lines,
        }
        keys = "".join(f"\x01{key}\x02{value}" for key, value in values.items() if value != "")
        yield f"C '{keys}' {counts[point]}\n"
