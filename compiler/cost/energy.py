"""Energy from counts of events.

Figures: M. Horowitz, "Computing's energy problem (and what we can do about it)", ISSCC 2014, figure 1.1.9, 45 nm,
0.9 V: 8-bit multiplication 0.2 pJ, 32-bit addition 0.1 pJ, 64 bits from an SRAM of 8 KiB 10 pJ, of 32 KiB 20 pJ, and
from DRAM 1.3 to 2.6 nJ, of which the lower is taken. They compare schedules; they are no measurement of a chip.
"""

from collections.abc import Mapping

from hw.config import MlaConfig
from hw.isa.counters import SP_BANKS_MAX

#: A multiplication and the addition to the sum.
MAC_PJ = 0.2 + 0.1
#: Each byte that is read from a memory or written to it; small memories inside a unit count for nothing.
PJ_PER_BYTE = {"sp": 20 / 8, "acc": 10 / 8, "dram": 1300 / 8}


def energy_uj(config: MlaConfig, counts: Mapping[str, int]) -> float:
    """Energy in microjoules of what was counted; `counts` by the names of hw.isa.counters."""
    return sum(energy_parts_uj(config, counts).values())


def energy_parts_uj(config: MlaConfig, counts: Mapping[str, int]) -> dict[str, float]:
    """The same, of the array, of the memories on the chip, and of DRAM."""
    rows = sum(counts[f"sp_{kind}_bank{b}"] for kind in ("reads", "writes") for b in range(SP_BANKS_MAX))
    acc = counts["acc_reads"] + counts["acc_writes"]
    dram = (counts["load_beats"] + counts["store_beats"]) * config.n
    return {
        "array": counts["macs_issued"] * MAC_PJ / 1e6,
        "memories": config.n * (rows * PJ_PER_BYTE["sp"] + acc * 4 * PJ_PER_BYTE["acc"]) / 1e6,
        "dram": dram * PJ_PER_BYTE["dram"] / 1e6,
    }
