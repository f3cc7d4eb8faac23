"""Options of the placer and router that have no command-line switch: they are attributes of the netlist."""

import json
from pathlib import Path

#: The router looks for a net's wires this many tiles beyond the box around its pins. With its
#: default of three it cannot route around regions in which wires are scarce.
ROUTING = {"router2/bbMargin/x": "12", "router2/bbMargin/y": "12"}


def set_options(netlist: Path, options: dict[str, str]) -> None:
    """Write options into a netlist of Yosys, from where nextpnr takes them.

    Parameters
    ----------
    netlist : Path
        JSON of the synthesized design, rewritten.
    options : dict of str
        nextpnr's names and values. A number of digits 0 and 1 alone would be read as binary.
    """
    design = json.loads(netlist.read_text())
    module = next(m for m in design["modules"].values() if int(m["attributes"].get("top", "0"), 2))
    module.setdefault("settings", {}).update(options)
    netlist.write_text(json.dumps(design))
