"""Sites for the multipliers of the chip, chosen before placement.

The placer's analytic step pulls the whole array to one spot to shorten its wires; the multipliers lie in three rows
across the whole device and end up to 80 tiles away from their registers. With fixed multipliers the other cells follow
them, which shortens the total wire length by a third.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

SiteOf = Callable[[int, int, int], str | None]
_CELL = "MULT18X18D"
#: The chip's multipliers outside the array: for each group its first block (counted from the left) and row. FUSE is in
#: the order of its steps, the sequencer on the other side of the device.
_OTHERS = (
    ("fuse.pipeline.op", 1, 2),
    ("fuse.pipeline.requant", 2, 2),
    ("fuse.pipeline.residual.scale_x", 3, 2),
    ("fuse.pipeline.residual.scale_r", 3, 2),
    ("fuse.pipeline.residual.scale_o", 4, 2),
    ("fuse.pipeline.post", 5, 2),
    ("core.issue", 10, 1),
)
_OPERAND = re.compile(r"matrix\.array\.(?:operand|weight)_(\d+)_(\d+)$")


def fix_multipliers(netlist: Path, site_of: SiteOf) -> int:
    """Give the chip's multipliers sites in a netlist of Yosys; returns how many have one.

    Column c of the array takes block c of two rows of multipliers: partial sums move within a block, activations
    from block to block. Multipliers of unknown purpose, or without a site left for them, stay free.

    Parameters
    ----------
    netlist : Path
        JSON of the synthesized design, rewritten if any multiplier is fixed.
    site_of : callable
        Returns the placer's name of a multiplier from its block, row and number in the block; None if the device has
        none there.
    """
    design = json.loads(netlist.read_text())
    module = next(m for m in design["modules"].values() if int(m["attributes"].get("top", "0"), 2))
    cells = {name: cell for name, cell in sorted(module["cells"].items()) if cell["type"] == _CELL}
    sites = dict(_sites(cells, _elements(module), site_of))
    for name, site in sites.items():
        cells[name]["attributes"]["BEL"] = site
    if sites:
        netlist.write_text(json.dumps(design))
    return len(sites)


def _elements(module: dict) -> dict[int, tuple[int, int]]:
    """Row and column of the element of the array that a bit is an operand of."""
    found = {}
    for name, net in module["netnames"].items():
        if match := _OPERAND.search(name):
            found |= dict.fromkeys(net["bits"], (int(match[1]), int(match[2])))
    return found


def _sites(cells: dict, elements: dict[int, tuple[int, int]], site_of: SiteOf) -> Iterator[tuple[str, str]]:
    taken: set[str] = set()
    used: dict[tuple[int, int], int] = defaultdict(int)
    for name, cell in cells.items():
        if "matrix.array." in name:
            position = _in_array(cell, elements)
        else:
            position = next(((b, row) for prefix, b, row in _OTHERS if prefix in name), None)
            if position:
                used[position] += 1
                block, row = position
                position = (block + (used[position] - 1) // 4, row, (used[position] - 1) % 4)
        site = site_of(*position) if position else None
        if site and site not in taken:
            taken.add(site)
            yield name, site


def _in_array(cell: dict, elements: dict[int, tuple[int, int]]) -> tuple[int, int, int] | None:
    """Block, row and number in the block of an element."""
    bits = [bit for bits in cell["connections"].values() for bit in bits]
    votes = Counter(elements[bit] for bit in bits if bit in elements)
    if not votes:
        return None
    (k, column), _ = votes.most_common(1)[0]
    return column, k // 4, k % 4
