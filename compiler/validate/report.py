"""Report of a proved stream of macro-instructions."""

from dataclasses import dataclass, field
from typing import Any

from compiler.validate.strided_regions import StridedRegion
from hw.isa.enums import Unit


@dataclass(frozen=True)
class ProofReport:
    """Figures of a stream that is proved safe; the maximum over all paths where the data select one.

    Parameters
    ----------
    calls : int
        Number of macro-instructions.
    ways : int
        Number of execution paths that the data can select.
    instructions : int
        Number of micro-instructions executed.
    commands : dict
        Number of unit commands by unit name.
    peak_in_flight : int
        Maximum number of issued commands that the sequencer did not know to have retired.
    regions : dict
        For each memory the first and last address read and written, [low, high] or None.
    """

    calls: int
    ways: int
    instructions: int
    commands: dict[str, int]
    peak_in_flight: int
    regions: dict[str, dict[str, list[int] | None]]

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON-serializable dict."""
        return dict(vars(self))

    def __str__(self) -> str:
        commands = ", ".join(f"{count} {unit}" for unit, count in self.commands.items())
        lines = [
            f"safe: {_counted(self.calls, 'call')}, {_counted(self.instructions, 'instruction')}, "
            f"{_counted(self.ways, 'path')}",
            f"commands: {commands}; at most {self.peak_in_flight} in flight",
        ]
        for space, spans in self.regions.items():
            touched = [f"{how} {span[0]:#x}..{span[1]:#x}" for how, span in spans.items() if span]
            lines.append(f"{space}: {', '.join(touched)}")
        return "\n".join(lines)


def _counted(count: int, noun: str) -> str:
    """Format a count with its noun, in the plural unless the count is one."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


@dataclass
class ProofFigures:
    """Figures of one path during exploration."""

    instructions: int = 0
    peak: int = 0
    commands: list[int] = field(default_factory=lambda: [0] * len(Unit))
    reach: dict[tuple[str, bool], tuple[int, int]] = field(default_factory=dict)

    def copy(self) -> "ProofFigures":
        """Copy the figures so that another path can continue from here."""
        return ProofFigures(self.instructions, self.peak, list(self.commands), dict(self.reach))

    def command(self, unit: Unit, regions: list[StridedRegion], in_flight: int) -> None:
        """Count a command."""
        self.commands[unit] += 1
        self.peak = max(self.peak, in_flight)
        for item in regions:
            key = (item.space, item.write)
            low, high = self.reach.get(key, (item.low, item.high))
            self.reach[key] = min(low, item.low), max(high, item.high)

    def add(self, more: "ProofFigures") -> None:
        """Add the figures of subsequent calls."""
        instructions, commands = self.instructions, self.commands
        self.join(more)
        self.instructions = instructions + more.instructions
        self.commands = [a + b for a, b in zip(commands, more.commands, strict=True)]

    def join(self, other: "ProofFigures") -> None:
        """Take the maximum of each figure over two paths."""
        self.instructions = max(self.instructions, other.instructions)
        self.peak = max(self.peak, other.peak)
        self.commands = [max(pair) for pair in zip(self.commands, other.commands, strict=True)]
        for key, (low, high) in other.reach.items():
            mine = self.reach.get(key, (low, high))
            self.reach[key] = min(mine[0], low), max(mine[1], high)

    def report(self, calls: int, ways: int) -> ProofReport:
        """Make the report of `calls` calls and `ways` paths."""
        regions: dict[str, dict[str, list[int] | None]] = {}
        for (space, write), span in sorted(self.reach.items()):
            regions.setdefault(space, {"read": None, "write": None})["write" if write else "read"] = list(
                span
            )
        commands = {unit.name.lower(): self.commands[unit] for unit in Unit}
        return ProofReport(calls, ways, self.instructions, commands, self.peak, regions)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
