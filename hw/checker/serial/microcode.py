"""Micro-programs of the serial checker: one for each unit, with a line for each field that it reads.

The result of a line is available only a few cycles later (see the stages of `SerialChecker`); lines without effect fill
the gaps for which there are no useful lines.
"""

from hw.checker.rules import MATRIX_A_ADDRESSES
from hw.checker.serial.layouts import CODE_LAYOUT, Early, Ends, Flag, Late, Rule, Width, X, Y
from hw.checker.values import AddressSpace
from hw.config import MlaConfig
from hw.isa.commands import FUSE_DIMS, UNIT_FIELDS
from hw.isa.enums import Unit

#: Number of lines that follow a jump and are executed before it is taken; the end of a program needs the same number of
#: lines.
SHADOW = 5

_WIDTHS = {4: Width.W4, 6: Width.W6, 8: Width.W8, 9: Width.W9, 12: Width.W12, 16: Width.W16, 20: Width.W20}


class MicrocodeBuilder:
    """Builder of the lines of one unit's program.

    Parameters
    ----------
    unit : Unit
        Unit whose fields the lines read.
    """

    def __init__(self, unit: Unit):
        self.lines: list[dict[str, int]] = []
        self._fields = {f.name: (i, f) for i, f in enumerate(UNIT_FIELDS[unit])}

    def add(self, value: str | int = 0, **parts: int) -> None:
        """Add a line that operates on a field or on a literal below 64."""
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
        """Add lines without effect."""
        for _ in range(lines):
            self.add(0)

    def rules(self, rule: Rule, *names: str, **when: int) -> None:
        """Add a line for each field that checks the field against a rule."""
        for name in names:
            self.add(name, rule=rule, **when)

    def times(self, x: str | int, y: str | int, ends: Ends, *, what: Y = Y.VALUE, **parts: int) -> None:
        """Add lines for the operands x and y of a product; x - 1 is used if the name of field x ends in `_count`."""
        self.factor(x, **{k: v for k, v in parts.items() if k in ("reset", "flag", "unless")})
        self.add(y, y=what, ends=ends, **{k: v for k, v in parts.items() if k != "reset"})

    def factor(self, x: str | int, **parts: int) -> None:
        """Add a line that loads the first operand."""
        steps = isinstance(x, str) and x.endswith("_count")
        self.add(x, x=X.VALUE, count=steps, **({"rule": Rule.ZERO} if steps else {}), **parts)

    def base(self, name: str, ends: Ends = Ends.BOTH) -> None:
        """Add lines that begin a box at the address in a field."""
        self.times(1, name, ends, reset=1)

    def plus(self, value: str | int, **parts: int) -> None:
        """Add a line that adds a field or literal to the high end; the first operand must be 1."""
        self.add(value, y=Y.VALUE, ends=Ends.HIGH, **parts)

    def verdict(self, kind: int, order: int, **parts: int) -> None:
        """Add lines that compare the box with its address space; the comparison takes two cycles."""
        self.add(0, kind=kind)
        self.add(0, kind=kind, order=order, late=Late.VERDICT, **parts)

    def range(self, axis: str, late: Late) -> None:
        """Add lines that increment the high end of a coordinate's range to the last coordinate, and then clip the
        range.
        """
        self.times(1, 1, Ends.HIGH)
        self.add(f"{axis}_lim", x=X.VALUE, count=1)
        self.pad(1)
        self.add(0, late=late)
        self.pad(2)

    def jump(self, flag: Flag, unless: int = 0) -> int:
        """Add a jump whose target is set later by `land`, and return the position of the jump."""
        self.add(0, early=Early.JUMP, flag=flag, unless=unless)
        self.pad(SHADOW)
        return len(self.lines) - SHADOW - 1

    def land(self, jump: int) -> None:
        """Set the target of a jump to the next line."""
        self.lines[jump]["target"] = len(self.lines)

    def end(self) -> None:
        """Add the lines that end the program once all comparisons are complete."""
        self.pad(1)
        self.add(0, late=Late.END)
        self.pad(SHADOW)

    def dimensions(self, stream: str, dimensions: tuple[str, ...]) -> None:
        """Add lines for the products of counts and strides of a stream."""
        for dim in dimensions:
            self.times(f"{dim}_count", f"{stream}_{dim}", Ends.ALONG)

    def coordinates(self) -> None:
        """Add lines for the products of the coordinates and strides of stream A."""
        for axis, low, high in (("u", X.U_LOW, X.U_HIGH), ("v", X.V_LOW, X.V_HIGH)):
            self.add(0, x=low)
            self.add(f"a_{axis}", y=Y.VALUE, ends=Ends.AGAINST)
            self.add(0, x=high)
            self.add(f"a_{axis}", y=Y.VALUE, ends=Ends.ALONG)

    def increments(self, inner: str) -> None:
        """Add lines that compute the walk increments of stream A."""
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


_FLAG_LAG = 2  # lines from a packed word to a condition that uses it
_DIVIDE_LAG = 16  # lines between a division and its quotient


def _dram(p: MicrocodeBuilder, config: MlaConfig, kind: int, **when: int) -> None:
    """Add lines for the stream in DRAM, whose addresses and strides are split into two halves."""
    p.times(1, "dram", Ends.BOTH, what=Y.LOW, reset=1)
    p.add("dram", y=Y.HIGH, ends=Ends.BOTH)
    p.plus("len")
    for axis in "yz":
        p.times(f"{axis}_count", f"dram_{axis}", Ends.ALONG, what=Y.LOW)
        p.add(f"dram_{axis}", y=Y.HIGH, ends=Ends.ALONG)
    for window in range(config.windows):
        for last in range(2):
            p.add(0, kind=kind, target=window << 1 | last, late=Late.LAST if last else Late.FIRST)
    p.verdict(kind, 0, **when)


def _load(p: MicrocodeBuilder, config: MlaConfig) -> None:
    p.add("word", early=Early.FIRST_WORD)
    p.rules(Rule.ZERO, "len")
    p.pad(_FLAG_LAG - 1)
    p.rules(Rule.ABOVE_N, "len", "y_count", flag=Flag.TRANSPOSE)
    p.rules(Rule.UNALIGNED, "dst", "dst_y", "dst_z", "len", flag=Flag.AWAY)
    p.rules(Rule.UNALIGNED, "dst", "dst_y", "dst_z", flag=Flag.PACKED)
    p.add(0, rule=Rule.ALWAYS, flag=Flag.BAD_LOAD)
    p.base("dst")
    p.plus("len", flag=Flag.COPIES)
    p.plus(config.n, flag=Flag.PACKED)
    p.plus(config.n, flag=Flag.PACKED)
    p.plus("y_count", flag=Flag.TRANSPOSE)
    p.factor("y_count", flag=Flag.TRANSPOSE, unless=1)
    p.add("len", x=X.VALUE, count=1, flag=Flag.TRANSPOSE)
    p.add("dst_y", y=Y.VALUE, ends=Ends.ALONG)
    p.times("z_count", "dst_z", Ends.ALONG)
    p.verdict(AddressSpace.SP, 0, flag=Flag.AWAY, unless=1)
    p.verdict(AddressSpace.PARAM, 0, flag=Flag.PARAM)
    p.verdict(AddressSpace.TABLE, 0, flag=Flag.TABLE)
    _dram(p, config, AddressSpace.DRAM_READ, flag=Flag.FILL, unless=1)


def _store(p: MicrocodeBuilder, config: MlaConfig) -> None:
    p.rules(Rule.ZERO, "len")
    p.base("src")
    p.plus("len")
    for axis in "yz":
        p.times(f"{axis}_count", f"src_{axis}", Ends.ALONG)
    p.verdict(AddressSpace.SP, 0)
    _dram(p, config, AddressSpace.DRAM_WRITE)


def _matrix(p: MicrocodeBuilder, config: MlaConfig) -> None:
    p.add("word", early=Early.FIRST_WORD)
    p.rules(Rule.ZERO, "x_count", "y_count", "kx_count", "ky_count", "ic_count", "oc_count")
    p.rules(Rule.ABOVE_N, "k_rows", "k_tail", "n_cols", "n_tail")
    for side, flag in (("a", Flag.A_UNSIGNED), ("w", Flag.W_UNSIGNED)):
        p.add(f"{side}_zp", rule=Rule.NEGATIVE_U8, flag=flag)
        p.add(f"{side}_zp", rule=Rule.BEYOND_I8, flag=flag, unless=1)
    p.add(0, rule=Rule.ALWAYS, flag=Flag.BAD_MATRIX)
    if config.wide:
        p.rules(Rule.NOT_ZERO, "w_zp", flag=Flag.PAIRED)
        p.rules(Rule.UNPAIRED, *MATRIX_A_ADDRESSES, flag=Flag.PAIRED)
    whole = p.jump(Flag.DW, unless=1)
    _depthwise(p)
    p.land(whole)
    # Counts that are 1 in a depthwise command have no effect on the box; the dimensions that only a depthwise command
    # uses are added.
    p.base("u0")
    p.times("y_count", "u_y", Ends.ALONG)
    p.times("ky_count", "u_ky", Ends.ALONG)
    p.add("u_y", x=X.VALUE, flag=Flag.DW)
    p.add(0, y=Y.ROWS, ends=Ends.ALONG, turned=1, flag=Flag.DW)
    p.range("u", Late.RANGE_U)
    p.base("v0")
    p.factor("x_count")
    p.add("dw_len", x=X.VALUE, count=1, flag=Flag.SHORT)
    p.add("v_x", y=Y.VALUE, ends=Ends.ALONG)
    p.times("kx_count", "v_kx", Ends.ALONG)
    p.range("v", Late.RANGE_V)
    p.increments("k")
    p.base("a_base")
    p.plus(config.n)
    if config.wide:
        p.plus(config.n, flag=Flag.PAIRED)
    p.dimensions("a", ("oc", "ic"))
    p.coordinates()
    p.verdict(AddressSpace.SP, 0, ranged=1)
    _weights(p, config)
    p.base("acc_base")
    p.plus(1)
    p.dimensions("acc", ("oc", "y"))
    p.add("acc_y", x=X.VALUE, flag=Flag.DW)
    p.add(0, y=Y.OUT_ROWS, ends=Ends.ALONG, turned=1, flag=Flag.DW)
    p.factor("x_count")
    p.add("dw_out_w", x=X.VALUE, count=1, flag=Flag.DW)
    p.add("acc_x", y=Y.VALUE, ends=Ends.ALONG)
    p.verdict(AddressSpace.ACC, 0)


def _depthwise(p: MicrocodeBuilder) -> None:
    """Add lines for the rules of depthwise commands and for the computation of the last image row and output row."""
    p.rules(Rule.NOT_ONE, "y_count", "kx_count", "ky_count", "ic_count")
    p.rules(Rule.NOT_ONE, "oc_count", flag=Flag.DW_KEEP)
    p.rules(Rule.ZERO, "dw_sx", "dw_sy", "dw_out_w", "dw_len")
    p.add(0, rule=Rule.ALWAYS, flag=Flag.BAD_TAPS)
    p.add("x_count", x=X.VALUE, reset=1)
    p.plus(1, flag=Flag.ONE_GROUP)
    p.plus(2, flag=Flag.TWO_GROUPS)
    p.add(0, early=Early.GROUP)
    p.add(0, x=X.TILE)
    p.plus(2)
    p.add(0, late=Late.NOT_DEEP, flag=Flag.DW_GROUPS)
    p.times(1, "dw_len", Ends.HIGH, reset=1)
    p.add(0, x=X.VALUE, count=1)
    p.plus("dw_lead")
    p.add(0, late=Late.NOT_BELOW)
    for divisor, late in (("x_count", Late.DIVIDE), ("dw_sy", Late.AGAIN)):
        p.add(divisor, x=X.VALUE)
        p.add(0, late=late)
        p.pad(_DIVIDE_LAG)
    p.add(0, late=Late.KEEP)
    p.times(1, "dw_len", Ends.HIGH, reset=1)
    p.add("x_count", x=X.VALUE)
    p.add(0, late=Late.DIVIDE)
    p.pad(_DIVIDE_LAG)


def _weights(p: MicrocodeBuilder, config: MlaConfig) -> None:
    """Add lines for the weights of MATRIX: the number of rows of the largest weight tile, and the box of all tiles."""
    for count, first, last, unless in (("ic", "k_rows", "k_tail", 1), ("oc", "n_cols", "n_tail", 0)):
        when = {"flag": Flag.W_TRANSPOSE, "unless": unless}
        p.add(f"{count}_count", early=Early.ONE, **when)
        p.add(first, early=Early.TILE, **when)
        p.add(last, early=Early.TAIL, **when)
    p.add(0, early=Early.TAPS, flag=Flag.DW)
    p.base("w_base")
    p.plus(config.n)
    p.dimensions("w", ("oc", "ic", "ky", "kx"))
    p.add(0, x=X.TILE, count=1)
    p.add("w_row", y=Y.VALUE, ends=Ends.ALONG)
    if config.wide:
        p.times(1, "w_row", Ends.ALONG, flag=Flag.SCALED)
    if config.sparse:
        p.times(config.n // 4, "w_row", Ends.ALONG, flag=Flag.SPARSE)
    p.verdict(AddressSpace.SP, 1)


def _fuse(p: MicrocodeBuilder, config: MlaConfig) -> None:
    p.add("src", early=Early.FIRST_WORD)
    p.add("stage", early=Early.SECOND_WORD)
    p.rules(Rule.ABOVE_N, "lanes", "lanes_tail")
    p.add(0, rule=Rule.ALWAYS, flag=Flag.BAD_FUSE)
    for axis, outer, inner, late in (("u", "y", "wy", Late.RANGE_U), ("v", "x", "wx", Late.RANGE_V)):
        p.base(f"{axis}0")
        for dim in (outer, inner):
            p.times(f"{dim}_count", f"{axis}_{dim}", Ends.ALONG)
        p.range(axis, late)
    p.increments("w")
    p.base("a_base")
    _touched(p, config, Flag.A_SP, Flag.A_16, Flag.A_32)
    p.plus(1, flag=Flag.A_SP, unless=1)
    p.dimensions("a", ("n",))
    p.coordinates()
    p.verdict(AddressSpace.SP, 0, ranged=1, flag=Flag.A_SP)
    p.verdict(AddressSpace.ACC, 0, ranged=1, flag=Flag.A_SP, unless=1)
    _result(p)
    p.add("wx_count", x=X.VALUE, reset=1)
    p.plus("wy_count")
    p.times(1, 1, Ends.HIGH)
    p.add(0, late=Late.NOT_MANY, flag=Flag.COUNT)
    p.base("p_base")
    p.plus(1)
    p.dimensions("p", ("x", "n"))
    p.verdict(AddressSpace.SLOT, 0, flag=Flag.SLOTS)
    without = p.jump(Flag.B, unless=1)
    p.base("b_base")
    _touched(p, config, Flag.B_SP, Flag.B_16, Flag.B_32)
    p.plus(1, flag=Flag.B_ACC)
    p.dimensions("b", FUSE_DIMS)
    p.verdict(AddressSpace.SP, 1, flag=Flag.B_SP)
    p.verdict(AddressSpace.ACC, 1, flag=Flag.B_ACC)
    p.land(without)
    without = p.jump(Flag.R, unless=1)
    p.base("r_base")
    _touched(p, config, Flag.R, Flag.R_16)
    p.dimensions("r", FUSE_DIMS)
    p.verdict(AddressSpace.SP, 2)
    p.land(without)


def _touched(
    p: MicrocodeBuilder, config: MlaConfig, some: Flag, more: Flag, most: Flag | None = None
) -> None:
    """Add lines that add the size in bytes of n elements to the high end; an element has one, two or four bytes."""
    p.plus(config.n, flag=some)
    p.plus(config.n, flag=more)
    if most is not None:
        p.plus(config.n, flag=most)
        p.plus(config.n, flag=most)


def _result(p: MicrocodeBuilder) -> None:
    """Add lines for the result stream of FUSE, which accesses one element per active lane at each address."""
    p.add("lanes", early=Early.TILE)
    p.add("lanes_tail", early=Early.LANES, flag=Flag.TAIL)
    p.add(0, early=Early.SINGLE, flag=Flag.REDUCES)
    p.base("d_base")
    p.plus(1, flag=Flag.D_SP, unless=1)
    p.add(0, x=X.TILE, flag=Flag.D_SP)
    p.plus(1, flag=Flag.D_SP)
    p.plus(1, flag=Flag.D_16)
    p.plus(2, flag=Flag.D_32)
    p.dimensions("d", FUSE_DIMS)
    p.verdict(AddressSpace.SP, 3, flag=Flag.D_SP)
    p.verdict(AddressSpace.ACC, 3, flag=Flag.D_SP, unless=1)


def programs(config: MlaConfig) -> tuple[list[int], dict[Unit, int]]:
    """Return the words of all programs, and the index of each unit's first word."""
    words: list[int] = []
    entries = {}
    for unit, write in {Unit.LOAD: _load, Unit.MATRIX: _matrix, Unit.FUSE: _fuse, Unit.STORE: _store}.items():
        entries[unit] = len(words)
        p = MicrocodeBuilder(unit)
        write(p, config)
        p.end()
        for line in p.lines:
            moved = line | (
                {"target": line["target"] + entries[unit]} if line.get("early") == Early.JUMP else {}
            )
            words.append(CODE_LAYOUT.const(moved).as_bits())
    return words, entries
