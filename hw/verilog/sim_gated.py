"""Second pass over Verilog for fast simulation, which moves logic under the enable of the registers that it drives.

For an idle pipeline, a simulator then evaluates one test per cycle instead of all arithmetic. The registers with the
same condition share a clocked block, which first computes, in temporaries, the logic that only these registers use.
Signals without readers are removed.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from hw.verilog.sim_clocked import modules

_ITEM = re.compile(
    r"(?P<assign>  assign (?P<lhs>[^\n]*?) = (?P<rhs>[^\n]*);\n)"
    r"|(?P<comb>  always @\* begin\n(?P<block>.*?)\n  end\n)"
    r"|(?P<clocked>  always @\(posedge (?P<clock>\w+)\) begin\n(?P<body>.*?)\n  end\n)",
    re.S,
)
_DECLARATION = re.compile(r"^  (wire|reg) (?:\[[^\]]*\] )?(\\\S+ |[\w$]+)(?: = [^;]*)? ?;\n", re.M)
_RESET = re.compile(r"    if \(rst\) begin\n(?P<reset>.*?)\n    end else begin\n(?P<body>.*)\n    end", re.S)
_GUARDED = re.compile(r"    if \((?P<condition>.*?)\) begin\n(?P<then>.*)\n    end", re.S)
_NAME = re.compile(r"(?<![\w'$.\\])(?:\\\S+ |[A-Za-z_][\w$]*)")
_ASSIGNMENT = re.compile(r"^\s*(\\\S+ |[A-Za-z_][\w$]*) ?(\[[^\]]*\] )?= ", re.M)
_KEYWORDS = {"if", "begin", "end", "else", "case", "casez", "endcase", "default", "signed", "unsigned"}
_ELSEWHERE = -1  # a reader that prevents a signal from moving: an instance, a port or a condition


class _Condition(NamedTuple):
    """Condition under which a clocked block has an effect."""

    clock: str
    guard: str
    resets: bool


@dataclass
class _Item:
    """An assignment, a combinational block or a clocked block."""

    span: tuple[int, int]
    text: str = ""
    target: str | None = None  # signal that the item drives, completely or in part
    reads: set[str] = field(default_factory=set)
    reset: str = ""  # assignments of a clocked block on reset
    condition: _Condition | None = None  # condition of a clocked block without other statements


def gated_logic(text: str) -> str:
    """Return the Verilog with logic moved under the conditions of the registers that it drives."""
    return "".join(_Module(part).rewritten() for part in modules(text))


def _names(text: str) -> set[str]:
    return set(_NAME.findall(text)) - _KEYWORDS


class _Module:
    """Items of a Verilog module, with the readers of each signal and the destination of each item."""

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
        self.drivers: dict[str, list[int]] = defaultdict(list)
        for i, item in enumerate(self.items):
            if item.target is not None:
                self.drivers[item.target].append(i)

    def _add(self, found: re.Match) -> None:
        item = _Item(found.span())
        if found["assign"]:
            item.text = f"      {found['lhs']} = {found['rhs']};"
            item.reads = _names(found["rhs"])
            item.target = self._declared(found["lhs"])
            if item.target is None:
                self._fix(_names(found["lhs"]))
        elif found["comb"]:
            self._combinational(item, found["block"])
        else:
            self._clocked(item, found)
        for name in item.reads:
            self.readers[name].add(len(self.items))
        self.items.append(item)

    def _declared(self, lhs: str) -> str | None:
        """Return the declared signal that `lhs` names or is a slice of; None if there is none."""
        found = _NAME.match(lhs + " ")
        return found[0] if found and found[0] in self.declared else None

    def _fix(self, names: set[str]) -> None:
        for name in names:
            self.readers[name].add(_ELSEWHERE)

    def _combinational(self, item: _Item, block: str) -> None:
        lines = [line for line in block.split("\n") if "\\$auto$" not in line]
        body = "\n".join(lines)
        assigned = {found[1] for found in _ASSIGNMENT.finditer(body)}
        item.reads = _names(_ASSIGNMENT.sub("", body))
        # Amaranth's combinational blocks assign a value to their signals on every path.
        if len(assigned) == 1 and assigned <= self.declared.keys() and not assigned & item.reads:
            item.target, item.text = assigned.pop(), "\n".join("  " + line for line in lines)
        else:
            self._fix(item.reads | assigned)

    def _clocked(self, item: _Item, found: re.Match) -> None:
        reset = _RESET.fullmatch(found["body"])
        item.text = reset["body"] if reset else found["body"]
        item.reset = reset["reset"] if reset else ""
        guards = []
        while (guarded := _GUARDED.fullmatch(item.text)) and not re.search(
            r"^    end", guarded["then"], re.M
        ):
            guards.append(guarded["condition"])
            item.text = re.sub(r"^  ", "", guarded["then"], flags=re.M)
        item.reads = _names(item.text)
        if guards:
            item.condition = _Condition(found["clock"], " && ".join(guards), reset is not None)
            self._fix(_names(item.condition.guard))

    def rewritten(self) -> str:
        """Return the rewritten text of the module."""
        dead = self._drop_dead()
        conditions_of = self._destinations()
        new = dict.fromkeys([*dead, *conditions_of], "")
        groups: dict[_Condition, list[int]] = defaultdict(list)
        for i, item in enumerate(self.items):
            if item.condition is not None:
                groups[item.condition].append(i)
        inside = defaultdict(list)
        for i, condition in conditions_of.items():
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
        return self._redeclared(text, {self.items[i].target for i in conditions_of})

    def _drop_dead(self) -> list[int]:
        """Remove items whose signal has no readers and is not a port; a removed item no longer counts as a reader."""
        dead = []
        todo = [name for name in self.drivers if not self.readers[name]]
        while todo:
            for i in self.drivers[todo.pop()]:
                dead.append(i)
                for name in self.items[i].reads & self.drivers.keys():
                    self.readers[name].discard(i)
                    if not self.readers[name]:
                        todo.append(name)
        return dead

    def _destinations(self) -> dict[int, _Condition]:
        """Return the condition under which each item can be placed: the common condition of all its readers.

        The conditions are determined backwards from the registers.
        """
        conditions_of = {i: item.condition for i, item in enumerate(self.items) if item.condition is not None}
        moved: dict[int, _Condition] = {}
        todo = [name for i in conditions_of for name in self.items[i].reads & self.drivers.keys()]
        while todo:
            name = todo.pop()
            conditions = {conditions_of.get(reader) for reader in self.readers[name]}
            if self.drivers[name][0] in conditions_of or len(conditions) != 1:
                continue
            (condition,) = conditions
            if condition is None:
                continue
            for i in self.drivers[name]:
                conditions_of[i] = moved[i] = condition
                todo += self.items[i].reads & self.drivers.keys()
        return moved

    def _ordered(self, members: list[int]) -> list[int]:
        """Return the items in an order in which each item follows the items whose signals it reads."""
        waiting, ordered, seen = [(i, False) for i in sorted(members, reverse=True)], [], set()
        allowed = set(members)
        while waiting:
            i, complete = waiting.pop()
            if complete:
                ordered.append(i)
            elif i not in seen:
                seen.add(i)
                waiting.append((i, True))
                names = self.items[i].reads & self.drivers.keys()
                sources = sorted(j for name in names for j in self.drivers[name] if j in allowed)
                waiting += [(j, False) for j in sources]
        return ordered

    def _group(self, condition: _Condition, moved: list[int], registers: list[int]) -> str:
        lines = [f"  always @(posedge {condition.clock}) begin"]
        if condition.resets:
            lines += ["    if (rst) begin", *(self.items[i].reset for i in registers), "    end else"]
        lines.append(f"    if ({condition.guard}) begin")
        lines += [self.items[i].text for i in moved]
        lines += [re.sub(r"^", "  ", self.items[i].text, flags=re.M) for i in registers]
        return "\n".join([*lines, "    end", "  end", ""])

    def _redeclared(self, text: str, names: set[str | None]) -> str:
        """Return the declarations; wires that have become temporaries are declared as variables."""
        for name in names:
            declaration = self.declared[name or ""][0]
            if declaration.startswith("  wire "):
                text = text.replace(declaration, declaration.replace("  wire ", "  reg ", 1), 1)
        return text
