"""Options of the placer and the router that have no command-line switch and are set as attributes of the netlist."""

import json
from pathlib import Path

#: Margin in tiles, around the bounding box of a net's pins, in which the router searches for wires. With the default of
#: three, the router cannot avoid regions in which wires are scarce.
ROUTING = {"router2/bbMargin/x": "12", "router2/bbMargin/y": "12"}


def set_options(netlist: Path, options: dict[str, str]) -> None:
    """Write options into a Yosys netlist, from which nextpnr reads them.

    Parameters
    ----------
    netlist : Path
        JSON file of the synthesized design; rewritten in place.
    options : dict of str
        Value of each option, by nextpnr's name of the option. A value that consists only of the digits 0 and 1 would be
        read as a binary number.
    """
    design = json.loads(netlist.read_text())
    module = next(m for m in design["modules"].values() if int(m["attributes"].get("top", "0"), 2))
    module.setdefault("settings", {}).update(options)
    netlist.write_text(json.dumps(design))
