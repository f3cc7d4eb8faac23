"""Lines of the serial checker's micro-programs, and what several of them do together."""

from hw.checker.serial.layouts import Early, Ends, Flag, Late, Rule, Width, X, Y
from hw.isa.commands import UNIT_FIELDS
from hw.isa.enums import Unit

#: Lines that follow a jump and run before it is taken; the program's end needs as many.
SHADOW = 5

_WIDTHS = {4: Width.W4, 6: Width.W6, 8: Width.W8, 9: Width.W9, 12: Width.W12, 16: Width.W16, 20: Width.W20}


class Program:
    """Lines of one unit.

    Parameters
    ----------
    unit : Unit
        Whose fields the lines name.
    """

    def __init__(self, unit: Unit):
        self.lines: list[dict[str, int]] = []
        self._fields = {f.name: (i, f) for i, f in enumerate(UNIT_FIELDS[unit])}

    def add(self, value: str | int = 0, **parts: int) -> None:
        """A line about a field, or about a number below 64."""
        if isinstance(value, int):
            where = {"index": value, "literal": 1, "width": int(Width.W32)}
        else:
            index, field = self._fields[value]
            where = {
                "index": index,
                "one": int(field.default == 1),
                "width": int(_WIDTHS.get(field.width, Width.W32)),
                "signed": int(field.signed),
            }
        self.lines.append(where | {name: int(part) for name, part in parts.items()})

    def pad(self, lines: int) -> None:
        """Lines without effect."""
        for _ in range(lines):
            self.add(0)

    def rules(self, rule: Rule, *names: str, **when: int) -> None:
        """What makes the command illegal."""
        for name in names:
            self.add(name, rule=rule, **when)

    def times(self, x: str | int, y: str | int, ends: Ends, *, what: Y = Y.VALUE, **parts: int) -> None:
        """Both factors; a count is a field that is named so."""
        self.factor(x, **{k: v for k, v in parts.items() if k in ("reset", "flag", "unless")})
        self.add(y, y=what, ends=ends, **{k: v for k, v in parts.items() if k != "reset"})

    def factor(self, x: str | int, **parts: int) -> None:
        """The first factor."""
        steps = isinstance(x, str) and x.endswith("_count")
        self.add(x, x=X.VALUE, count=steps, **({"rule": Rule.ZERO} if steps else {}), **parts)

    def base(self, name: str, ends: Ends = Ends.BOTH) -> None:
        """Begins a box at a field."""
        self.times(1, name, ends, reset=1)

    def plus(self, value: str | int, **parts: int) -> None:
        """Moves the high end by a field or number, the first factor being 1."""
        self.add(value, y=Y.VALUE, ends=Ends.HIGH, **parts)

    def verdict(self, kind: int, order: int, **parts: int) -> None:
        """Compares the box with its space: the comparison has two cycles."""
        self.add(0, kind=kind)
        self.add(0, kind=kind, order=order, late=Late.VERDICT, **parts)

    def range(self, axis: str, late: Late) -> None:
        """Cuts a coordinate's range, and makes its high end that coordinate and not the one before."""
        self.times(1, 1, Ends.HIGH)
        self.add(f"{axis}_lim", x=X.VALUE, count=1)
        self.pad(1)
        self.add(0, late=late)
        self.pad(2)

    def jump(self, flag: Flag, unless: int = 0) -> int:
        """Jump whose target is set later."""
        self.add(0, early=Early.JUMP, flag=flag, unless=unless)
        self.pad(SHADOW)
        return len(self.lines) - SHADOW - 1

    def land(self, jump: int) -> None:
        """The jump leads here."""
        self.lines[jump]["target"] = len(self.lines)

    def end(self) -> None:
        """The verdicts are in."""
        self.pad(1)
        self.add(0, late=Late.END)
        self.pad(SHADOW)

    def dimensions(self, stream: str, dimensions: tuple[str, ...]) -> None:
        """Counts and strides of a stream."""
        for dim in dimensions:
            self.times(f"{dim}_count", f"{stream}_{dim}", Ends.ALONG)

    def coordinates(self) -> None:
        """The coordinates' part of stream A."""
        for axis, low, high in (("u", X.U_LOW, X.U_HIGH), ("v", X.V_LOW, X.V_HIGH)):
            self.add(0, x=low)
            self.add(f"a_{axis}", y=Y.VALUE, ends=Ends.AGAINST)
            self.add(0, x=high)
            self.add(f"a_{axis}", y=Y.VALUE, ends=Ends.ALONG)

    def increments(self, inner: str) -> None:
        """Increments of the walk of stream A."""
        self.base("a_base", Ends.LOW)
        self.times("u0", "a_u", Ends.LOW)
        self.times("v0", "a_v", Ends.LOW, late=Late.START)
        for x, y, late in (
            ("u_y", "a_u", Late.DU1),
            (f"u_{inner}y", "a_u", Late.DU2),
            ("v_x", "a_v", Late.DV1),
            (f"v_{inner}x", "a_v", Late.DV2),
        ):
            self.times(x, y, Ends.LOW, reset=1, late=late)
