"""Verilog for fast simulation, second pass: logic moves behind the condition of the registers it feeds.

A pipeline that stands still then costs a simulator one test a cycle, not its arithmetic. The registers of one
condition share a clocked block, which computes what only they need in temporaries first. Signals that nothing
reads are dropped.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, field

from hw.emit_clocked import modules

_ITEM = re.compile(
    r"(?P<assign>  assign (?P<lhs>[^\n]*?) = (?P<rhs>[^\n]*);\n)"
    r"|(?P<comb>  always @\* begin\n(?P<block>.*?)\n  end\n)"
    r"|(?P<clocked>  always @\(posedge (?P<clock>\w+)\) begin\n(?P<body>.*?)\n  end\n)",
    re.S,
)
_DECLARATION = re.compile(r"^  (wire|reg) (?:\[[^\]]*\] )?(\\\S+ |[\w$]+)(?: = [^;]*)? ?;\n", re.M)
_GUARDED = re.compile(r"    if \((?P<condition>.*?)\) begin\n(?P<then>.*)\n    end", re.S)
_NAME = re.compile(r"(?<![\w'$.\\])(?:\\\S+ |[A-Za-z_][\w$]*)")
_ASSIGNMENT = re.compile(r"^\s*(\\\S+ |[A-Za-z_][\w$]*) ?(\[[^\]]*\] )?= ", re.M)
_KEYWORDS = {"if", "begin", "end", "else", "case", "casez", "endcase", "default", "signed", "unsigned"}
_ELSEWHERE = -1  # a reader that keeps a signal where it is: an instance, a port, a condition


@dataclass
class _Item:
    """An assignment, a combinational block or a clocked block."""

    span: tuple[int, int]
    text: str = ""
    target: str | None = None  # the whole signal it drives
    reads: set[str] = field(default_factory=set)
    condition: tuple[str, str] | None = None  # clock and guard of a clocked block that is nothing else


def gated_logic(text: str) -> str:
    """The same Verilog with all logic behind the conditions of the registers it feeds."""
    return "".join(_Module(part).rewritten() for part in modules(text))


def _names(text: str) -> set[str]:
    return set(_NAME.findall(text)) - _KEYWORDS


class _Module:
    """One module's items, who reads what, and where everything goes."""

    def __init__(self, text: str):
        self.text = text
        self.declared = {found[2]: found for found in _DECLARATION.finditer(text)}
        self.items: list[_Item] = []
        self.readers: dict[str, set[int]] = defaultdict(set)
        rest, position = [], 0
        for found in _ITEM.finditer(text):
            rest.append(text[position : found.start()])
            position = found.end()
            self._add(found)
        rest.append(text[position:])
        for name in _names(_DECLARATION.sub("", "".join(rest))):
            self.readers[name].add(_ELSEWHERE)
        self.driver = {item.target: i for i, item in enumerate(self.items) if item.target is not None}

    def _add(self, found: re.Match) -> None:
        item = _Item(found.span())
        if found["assign"]:
            item.text = f"      {found['lhs']} = {found['rhs']};"
            item.reads = _names(found["rhs"])
            item.target = self._whole(found["lhs"])
            if item.target is None:
                self._fix(_names(found["lhs"]))
        elif found["comb"]:
            self._combinational(item, found["block"])
        else:
            self._clocked(item, found)
        for name in item.reads:
            self.readers[name].add(len(self.items))
        self.items.append(item)

    def _whole(self, lhs: str) -> str | None:
        """The declared signal that `lhs` is all of."""
        for name in (lhs, lhs.rstrip() + " "):
            if name in self.declared:
                return name
        return None

    def _fix(self, names: set[str]) -> None:
        for name in names:
            self.readers[name].add(_ELSEWHERE)

    def _combinational(self, item: _Item, block: str) -> None:
        lines = [line for line in block.split("\n") if "\\$auto$" not in line]
        body = "\n".join(lines)
        assigned = {found[1] for found in _ASSIGNMENT.finditer(body)}
        first = _ASSIGNMENT.match(lines[0])
        item.reads = _names(_ASSIGNMENT.sub("", body))
        # A signal that first gets a value as a whole and is not read back remembers nothing.
        complete = first and not first[2] and len(assigned) == 1 and first[1] in self.declared
        if first and complete and first[1] not in item.reads:
            item.target, item.text = first[1], "\n".join("  " + line for line in lines)
        else:
            self._fix(item.reads | assigned)

    def _clocked(self, item: _Item, found: re.Match) -> None:
        guarded = _GUARDED.fullmatch(found["body"])
        if guarded and not re.search(r"^    end", guarded["then"], re.M):
            item.condition = (found["clock"], guarded["condition"])
            item.text = guarded["then"]
            item.reads = _names(guarded["then"])
            self._fix(_names(guarded["condition"]))
        else:
            item.reads = _names(found["body"])

    def rewritten(self) -> str:
        """The module's new text."""
        dead = self._drop_dead()
        place = self._placed()
        new = dict.fromkeys([*dead, *place], "")
        groups: dict[tuple[str, str], list[int]] = defaultdict(list)
        for i, item in enumerate(self.items):
            if item.condition is not None:
                groups[item.condition].append(i)
        inside = defaultdict(list)
        for i, condition in place.items():
            inside[condition].append(i)
        for condition, registers in groups.items():
            if inside[condition]:
                new |= dict.fromkeys(registers, "")
                new[registers[0]] = self._group(condition, self._ordered(inside[condition]), registers)
        pieces, position = [], 0
        for i, item in enumerate(self.items):
            pieces += [self.text[position : item.span[0]], new.get(i, self.text[slice(*item.span)])]
            position = item.span[1]
        text = "".join(pieces) + self.text[position:]
        return self._redeclared(text, [self.items[i].target for i in place])

    def _drop_dead(self) -> list[int]:
        """Items whose signal nothing reads, ports aside; they no longer count as readers."""
        dead = []
        todo = [name for name in self.driver if not self.readers[name]]
        while todo:
            i = self.driver[todo.pop()]
            dead.append(i)
            for name in self.items[i].reads:
                self.readers[name].discard(i)
                if not self.readers[name] and name in self.driver and self.driver[name] != i:
                    todo.append(name)
        return dead

    def _placed(self) -> dict[int, tuple[str, str]]:
        """The condition each item can go behind: that of all who read it, from the registers backwards."""
        place = {i: item.condition for i, item in enumerate(self.items) if item.condition is not None}
        moved: dict[int, tuple[str, str]] = {}
        todo = [name for i in place for name in self.items[i].reads if name in self.driver]
        while todo:
            name = todo.pop()
            i = self.driver[name]
            conditions = {place.get(reader) for reader in self.readers[name]}
            condition = conditions.pop() if len(conditions) == 1 else None
            if i in place or condition is None:
                continue
            place[i] = moved[i] = condition
            todo += [other for other in self.items[i].reads if other in self.driver]
        return moved

    def _ordered(self, members: list[int]) -> list[int]:
        """Items such that each comes after those it reads."""
        waiting, ordered, seen = [(i, False) for i in sorted(members, reverse=True)], [], set()
        allowed = set(members)
        while waiting:
            i, complete = waiting.pop()
            if complete:
                ordered.append(i)
            elif i not in seen:
                seen.add(i)
                waiting.append((i, True))
                sources = sorted(self.driver[name] for name in self.items[i].reads if name in self.driver)
                waiting += [(j, False) for j in sources if j in allowed]
        return ordered

    def _group(self, condition: tuple[str, str], moved: list[int], registers: list[int]) -> str:
        lines = [f"  always @(posedge {condition[0]}) begin", f"    if ({condition[1]}) begin"]
        lines += [self.items[i].text for i in (*moved, *registers)]
        return "\n".join([*lines, "    end", "  end", ""])

    def _redeclared(self, text: str, names: list[str | None]) -> str:
        """Wires that became temporaries are declared as variables."""
        for name in names:
            declaration = self.declared[name or ""][0]
            if declaration.startswith("  wire "):
                text = text.replace(declaration, declaration.replace("  wire ", "  reg ", 1), 1)
        return text
