"""Assignment of sites to the chip's multipliers before placement.

The placer's analytic step concentrates the whole array in one spot to shorten its wires. The multiplier sites, however,
are in three rows across the device, so multipliers are placed up to 80 tiles from their registers. If the multipliers
are fixed, the other cells are placed near them, which reduces the total wire length by a third.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

SiteOf = Callable[[int, int, int], str | None]
_CELL = "MULT18X18D"
#: Multipliers of the chip outside the array: the first block (counted from the left) and the row of each group. The
#: groups of FUSE are in the order of its steps; the sequencer is on the other side of the device.
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
    """Assign sites to the chip's multipliers in a Yosys netlist, and return the number of multipliers that have a site.

    Column c of the array uses block c of two rows of multipliers, so partial sums move within a block and activations
    from block to block. Multipliers of unknown purpose, and those for which no site remains, are not fixed.

    Parameters
    ----------
    netlist : Path
        JSON file of the synthesized design, rewritten if any multiplier is fixed.
    site_of : callable
        Function that returns the placer's name of the multiplier with the given block, row and index within the block,
        or None if the device has no multiplier at this position.
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
    """Return the row and column of the array element to which each operand bit belongs."""
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
    """Return the block, the row and the index within the block of an array element's multiplier; None if the cell is
    not in the array.
    """
    bits = [bit for bits in cell["connections"].values() for bit in bits]
    votes = Counter(elements[bit] for bit in bits if bit in elements)
    if not votes:
        return None
    (k, column), _ = votes.most_common(1)[0]
    return column, k // 4, k % 4
