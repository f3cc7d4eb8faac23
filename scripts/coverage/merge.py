"""Merge of coverage counts from several chips and processes."""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from hw.errors import InputError
from scripts.coverage.counts import VerilatorPoint, read_counts
from scripts.coverage.source_map import WRITER, SourceLocation, SourceMap


@dataclass(frozen=True, order=True)
class CoveragePoint:
    """Coverage point, identified independently of the chip's configuration.

    Parameters
    ----------
    location : SourceLocation
        Line of the sources.
    module : str
        Path of the instance, without the numbers that make the path unique within a chip.
    page, kind : str
        Type and kind of the point, as in `VerilatorPoint`.
    label : str
        Pattern of a case; empty for other points.
    ordinal : int
        Index among otherwise equal points, in the order of the Verilog text; 0 for memories and conditional operands,
        whose counts are summed.
    """

    location: SourceLocation
    module: str
    page: str
    kind: str
    label: str
    ordinal: int

    @property
    def about(self) -> str:
        """Description of the point within its line, which the pattern of a waiver can match."""
        return " ".join(part for part in (self.module, self.kind, self.label) if part)


def merge(folder: Path) -> dict[CoveragePoint, int]:
    """Return the counts of all points of the chips in a folder written by `--hw-coverage`.

    Raises
    ------
    InputError
        The folder is empty, or the Verilog text of a chip is missing.
    """
    data = sorted(folder.glob("*.dat"))
    if not data:
        raise InputError(f"{folder} has no coverage data; fill it with pytest --hw-coverage {folder}")
    chips: dict[str, Counter[VerilatorPoint]] = {}
    for path in data:
        chips.setdefault(path.name.split(".")[0], Counter()).update(read_counts(path))
    merged: Counter[CoveragePoint] = Counter()
    for key, counts in chips.items():
        chip = folder / f"{key}.v"
        if not chip.is_file():
            raise InputError(f"{chip} is missing: the data {key}.*.dat counts its lines")
        merged.update(coverage_points(SourceMap(chip.read_text()), counts))
    return dict(merged)


def coverage_points(source_map: SourceMap, counts: Counter[VerilatorPoint]) -> Counter[CoveragePoint]:
    """Return the counts of one chip by points that do not depend on its configuration."""
    seen: Counter[tuple] = Counter()
    result: Counter[CoveragePoint] = Counter()
    for point in sorted(counts):
        if not source_map.counts(point):
            continue
        location, label = source_map.location(point), source_map.label(point)
        module = re.sub(r"\$\d+", "", point.module)
        if location == WRITER:  # memories of all sizes are counted as one
            same = (location, re.sub(r"_w\d+_d\d+_g\d+", "", module), point.page, point.kind, label)
        else:
            same = (location, module.removeprefix("mla_chip."), point.page, point.kind, label)
        # The number and order of conditional operands depend on the array size, so all of them are counted as one.
        one = location == WRITER or point.kind.startswith("cond")
        result[CoveragePoint(*same, 0 if one else seen[same])] += counts[point]
        seen[same] += 1
    return result
