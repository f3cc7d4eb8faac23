"""Area and clock frequency of optional features, unit by unit, on the FPGA of the ULX3S.

`python -m scripts.area [FEATURE ...]` synthesizes, places and routes the unit that contains each feature, without and
with the feature, between registers (`hw/boards/harness.py`), and prints the table of docs/fpga.md. The other options
are those of target ulx3s-85f. A unit takes 2 to 30 minutes; units that have been built, into build/area, are not built
again unless the hardware has changed.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from amaranth.lib import wiring

from hw.boards.board import BOARDS
from hw.boards.flow import build_component
from hw.config import MlaConfig, load_target
from hw.memory.scratchpad import PipelinedScratchpad
from hw.units.fuse import FuseUnit
from hw.units.load.unit import LoadUnit
from hw.units.matrix.unit import MatrixUnit
from hw.units.store.unit import StoreUnit
from hw.verilog.writer import convert

_BOARD = "ulx3s-85f"
_FOLDER = Path("build/area")
#: Resources of the report by heading.
_RESOURCES = {"LUTs": "lut", "flip-flops": "ff", "multipliers": "dsp"}


class Feature(NamedTuple):
    """A feature: the unit that implements it, and its options in addition to those `before` it."""

    unit: type[wiring.Component]
    before: dict[str, int]
    options: dict[str, int]


FEATURES = {
    "two rows of weights": Feature(MatrixUnit, {}, {"weight_rows": 2}),
    "wide mode, scaled sums": Feature(MatrixUnit, {}, {"wide": 1}),
    "sparse mode": Feature(MatrixUnit, {"wide": 1}, {"sparse": 1}),
    "packed loads": Feature(LoadUnit, {}, {"packed_loads": 1}),
    "bus of two rows": Feature(LoadUnit, {}, {"bus_bytes": 16}),
    "bus of two rows, with packed loads": Feature(LoadUnit, {"packed_loads": 1}, {"bus_bytes": 16}),
    "bus of two rows, STORE": Feature(StoreUnit, {}, {"bus_bytes": 16}),
    "bus of two rows, scratchpad": Feature(PipelinedScratchpad, {}, {"bus_bytes": 16}),
    "eight reciprocal units": Feature(FuseUnit, {}, {"reciprocal_units": 8}),
    "two lanes of FUSE": Feature(FuseUnit, {}, {"fuse_rate": 4}),
}


def main() -> int:
    """Build the units and print the table."""
    parser = argparse.ArgumentParser(
        description="Measure area and clock frequency of features of the hardware."
    )
    parser.add_argument("features", nargs="*", metavar="FEATURE", help=f"one of: {', '.join(FEATURES)}")
    chosen = parser.parse_args().features or list(FEATURES)
    if unknown := [name for name in chosen if name not in FEATURES]:
        parser.error(f"there is no feature {unknown[0]!r}; features: {', '.join(FEATURES)}")
    heads = ["feature", "unit", *_RESOURCES, "clock (MHz)"]
    print("| " + " | ".join(heads) + " |\n| --- | --- |" + " --: |" * (len(heads) - 2))
    base = load_target(_BOARD)
    for name in chosen:
        unit, before, options = FEATURES[name]
        without = replace(base, **before)
        numbers = [_measured(unit, config) for config in (without, replace(without, **options))]
        cells = [f"{numbers[0][key]:,} → {numbers[1][key]:,}" for key in numbers[0]]
        print(f"| {name} | {unit.__name__} | " + " | ".join(cells) + " |", flush=True)
    return 0


def _measured(unit: Callable[[MlaConfig], wiring.Component], config: MlaConfig) -> dict[str, float]:
    """Return resources and clock frequency of a unit; builds are kept by the hash of their Verilog."""
    digest = hashlib.sha256(convert(unit(config), "top").encode()).hexdigest()[:16]
    folder = _FOLDER / digest
    if not (folder / "report.json").exists():
        _FOLDER.mkdir(parents=True, exist_ok=True)
        build_component(
            BOARDS[_BOARD],
            lambda: unit(config),
            seeds=1,
            folder=folder,
            progress=lambda text, _ended: print(text, file=sys.stderr),
        )
    (result,) = [json.loads((folder / "report.json").read_text())["worst"]]
    used = {key: result["resources"][name]["used"] for key, name in _RESOURCES.items()}
    return used | {"clock": round(result["fmax_mhz"], 1)}


if __name__ == "__main__":
    sys.exit(main())
