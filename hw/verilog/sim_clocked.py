"""First pass over Verilog for fast simulation, which moves the conditions of registers into their clocked blocks.

Amaranth writes a register as a combinational block for its next value and a clocked block that copies this value, so a
simulator computes and copies every register in every cycle. A clocked block that contains the conditions does nothing
while they are false.
"""

import re
from collections import Counter

_NEXT = re.compile(
    r"  always @\* begin\n    if \(\\\$auto\$[^\n]*\) begin end\n"
    r"(?P<body>    (?P<next>\\\$\d+) .*?)\n  end\n",
    re.S,
)
_REGISTER = re.compile(r"  always @\(posedge (?P<clock>\w+)\)\n    (?P<target>.+?) <= (?P<next>\\\$\d+) ;\n")
_TEMPORARY = re.compile(r"\\\$\d+ ")
_ASSIGNED = re.compile(r"^\s*(\\?\S+) (?:\[[^\]]*\] )? ?= ", re.M)
_RESET = "    if (rst) begin"


def modules(text: str) -> list[str]:
    """Split a Verilog text after each `endmodule`, and return the parts."""
    return re.split(r"(?<=\nendmodule\n)", text)


def clocked_registers(text: str) -> str:
    """Merge each next-state block that drives only one register into the clocked block of this register."""
    return "".join(_module(part) for part in modules(text))


def _module(text: str) -> str:
    registers: dict[str, list[re.Match]] = {}
    for found in _REGISTER.finditer(text):
        registers.setdefault(found["next"], []).append(found)
    uses = Counter(_TEMPORARY.findall(text))
    edits = []
    for block in _NEXT.finditer(text):
        mine = registers.get(block["next"], [])
        name = block["next"] + " "
        # The name must occur only in the block, in its declaration and in one register.
        if len(mine) != 1 or block["body"].count(name) + 2 != uses[name]:
            continue
        lines = _clocked(block["body"], block["next"], mine[0]["target"])
        if lines is not None:
            body = "\n".join(lines)
            edits.append((block.span(), f"  always @(posedge {mine[0]['clock']}) begin\n{body}\n  end\n"))
            edits.append((mine[0].span(), ""))
    for (start, end), new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _clocked(body: str, name: str, target: str) -> list[str] | None:
    """Return the lines of the merged block; None if the next-state block reads its result or drives another signal."""
    if set(_ASSIGNED.findall(body)) != {name}:
        return None
    assignment = re.compile(r"^(\s*)" + re.escape(name) + r" (\[[^\]]*\] )? ?= ")
    lines = [assignment.sub(lambda a: f"{a[1]}{target} {a[2] or ''}<= ", line) for line in body.split("\n")]
    if any(name + " " in line for line in lines):
        return None
    if lines[0].replace(" ", "") == f"{target}<={target};".replace(" ", ""):
        del lines[0]
    if lines[-3:-2] == [_RESET]:  # the last assignment is effective
        lines = [_RESET, lines[-2], "    end else begin", *lines[:-3], "    end"]
    return lines
