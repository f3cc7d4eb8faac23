"""Relocation of product registers from the FPGA fabric into the multipliers.

Synthesis places these registers in the fabric, so the path of every product bit includes the delays of the multiplier
and of the wire to the register.
"""

import json
from collections import defaultdict
from pathlib import Path

_MULTIPLIER, _REGISTER = "MULT18X18D", "TRELLIS_FF"
_OUTPUTS = tuple(f"P{i}" for i in range(36))


def register_products(netlist: Path) -> int:
    """Enable the output registers of multipliers in a Yosys netlist, and return the number of multipliers changed.

    A multiplier is changed if each bit of its product drives exactly one register and nothing else, and all these
    registers have the same clock, no enable, and the initial value 0.

    Parameters
    ----------
    netlist : Path
        JSON file of the synthesized design, rewritten if any register is moved.
    """
    design = json.loads(netlist.read_text())
    module = next(m for m in design["modules"].values() if int(m["attributes"].get("top", "0"), 2))
    cells = module["cells"]
    users = _users(cells)
    moved = sum(_move(cells, cell, users) for cell in list(cells.values()) if cell["type"] == _MULTIPLIER)
    if moved:
        netlist.write_text(json.dumps(design))
    return moved


def _users(cells: dict) -> dict[int, list[tuple[str, str]]]:
    """Return the (cell, port) pairs that each bit drives."""
    users = defaultdict(list)
    for name, cell in cells.items():
        for port, bits in cell["connections"].items():
            if cell["port_directions"][port] == "input":
                for bit in bits:
                    users[bit].append((name, port))
    return users


def _move(cells: dict, multiplier: dict, users: dict[int, list[tuple[str, str]]]) -> bool:
    """Move the product registers of one multiplier if all of them qualify, and return whether they were moved."""
    if multiplier["parameters"].get("REG_OUTPUT_CLK", "NONE") != "NONE":
        return False
    registers = {}
    for output in _OUTPUTS:
        for bit in multiplier["connections"].get(output, []):
            if not users[bit]:
                continue
            name, port = users[bit][0]
            if len(users[bit]) > 1 or port != "DI" or not _plain(cells[name]):
                return False
            registers[output] = name
    clocks = {cells[name]["connections"]["CLK"][0] for name in registers.values()}
    if len(clocks) != 1:
        return False
    for output, name in registers.items():
        multiplier["connections"][output] = cells.pop(name)["connections"]["Q"]
    multiplier["parameters"]["REG_OUTPUT_CLK"] = "CLK0"
    for port, bit in (("CLK0", clocks.pop()), ("CE0", "1"), ("RST0", "0")):
        multiplier["connections"][port] = [bit]
        multiplier["port_directions"][port] = "input"
    return True


def _plain(cell: dict) -> bool:
    """Return whether a cell is a register without enable or reset and with the initial value 0."""
    settings = cell["parameters"]
    return (
        cell["type"] == _REGISTER
        and settings.get("CEMUX", "CE").strip() == "1"
        and settings.get("CLKMUX", "CLK") == "CLK"
        and settings.get("REGSET") == "RESET"
        and cell["connections"].get("LSR", ["0"]) == ["0"]
    )
