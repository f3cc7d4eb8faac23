"""Energy from counts of events, leakage and power states; time and power at a clock frequency."""

from collections.abc import Mapping
from dataclasses import dataclass

from hw.config import MlaConfig
from hw.isa.counters import SP_BANKS_MAX

#: Picojoules of a multiply-accumulate: a multiplication and the addition to the sum.
MAC_PJ = 0.2 + 0.1
#: Picojoules per byte that is read from a memory or written to it; small memories inside a unit are not counted.
PJ_PER_BYTE = {"sp": 20 / 8, "acc": 10 / 8, "dram": 1300 / 8}

#: Supply voltage for which the energies of events hold, in volts.
TABLE_VOLTS = 0.9
#: Leakage of a bit of memory in amperes at `_LEAKAGE_VOLTS`: the widths of a cell's transistors that are off (4.62
#: times 45 nm) times 10.8 nA per micrometer, the subthreshold current of ITRS low operating power transistors of 45 nm
#: at 350 K in CACTI 6.5 (`technology.cc`). The current grows with the fifth power of the voltage, as in McPAT's models.
_BIT_LEAKAGE, _LEAKAGE_VOLTS, _LEAKAGE_POWER = 4.62 * 0.045 * 10.8e-9, 0.7, 5
#: Bits of an instruction.
_WORD_BITS = 64


@dataclass(frozen=True)
class PowerState:
    """Clock frequency, as a share of the fastest, and the supply voltage in volts that it needs."""

    share: float
    volts: float

    def energy_uj(self, chip: float, dram: float) -> float:
        """Return the energy in microjoules of events that take `chip` on the chip, by the table, and `dram` in DRAM.

        The energy of an event on the chip is proportional to the square of the voltage.
        """
        return chip * (self.volts / TABLE_VOLTS) ** 2 + dram


#: Power states, slowest first. The voltages are the operating points of the graphics processor of the Rockchip RK3568
#: between 200 and 800 MHz (`arch/arm64/boot/dts/rockchip/rk356x.dtsi` of Linux).
POWER_STATES = (
    PowerState(0.25, 0.825),
    PowerState(0.375, 0.825),
    PowerState(0.5, 0.825),
    PowerState(0.75, 0.825),
    PowerState(0.875, 0.9),
    PowerState(1.0, 1.0),
)


def leakage_mw(config: MlaConfig, volts: float) -> float:
    """Return the leakage of the memories on the chip in milliwatts; that of the logic is not counted."""
    bits = 8 * (config.sp_bytes + config.acc_bytes) + _WORD_BITS * config.wis_words
    current = bits * _BIT_LEAKAGE * (volts / _LEAKAGE_VOLTS) ** _LEAKAGE_POWER
    return current * volts * 1e3


def energy_uj(config: MlaConfig, counts: Mapping[str, int]) -> float:
    """Return the energy in microjoules for counter values, which are given by counter name (`hw.isa.counters`)."""
    return sum(energy_parts_uj(config, counts).values())


def energy_parts_uj(config: MlaConfig, counts: Mapping[str, int]) -> dict[str, float]:
    """Return the energy in microjoules of the array, of the memories on the chip, and of DRAM."""
    rows = sum(counts[f"sp_{kind}_bank{b}"] for kind in ("reads", "writes") for b in range(SP_BANKS_MAX))
    acc = counts["acc_reads"] + counts["acc_writes"]
    dram = (counts["load_beats"] + counts["store_beats"]) * config.beat_bytes
    return {
        "array": counts["macs_issued"] * MAC_PJ / 1e6,
        "memories": config.n * (rows * PJ_PER_BYTE["sp"] + acc * 4 * PJ_PER_BYTE["acc"]) / 1e6,
        "dram": dram * PJ_PER_BYTE["dram"] / 1e6,
    }


def expected_energy_nj(
    config: MlaConfig, rows: float, points: float, beats: float
) -> tuple[float, float, float]:
    """Return the energy in nanojoules of the array, of FUSE and of transfers, expected from the work of the units.

    Each beat moves N bytes between DRAM and scratchpad. Each row of the array reads N bytes of the scratchpad, and
    reads and writes a row of the accumulator; the reads by FUSE take the place of those of a result's first row. Each
    point of FUSE reads or writes N bytes of the scratchpad twice.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.
    rows : float
        Rows of activations of the array.
    points : float
        Points of FUSE.
    beats : float
        Beats that LOAD and STORE move.
    """
    n = config.n
    of_row = n * n * MAC_PJ + n * PJ_PER_BYTE["sp"] + 2 * 4 * n * PJ_PER_BYTE["acc"]
    of_point = 2 * n * PJ_PER_BYTE["sp"]
    of_beat = n * (PJ_PER_BYTE["dram"] + PJ_PER_BYTE["sp"])
    return rows * of_row / 1e3, points * of_point / 1e3, beats * of_beat / 1e3


def at_clock(
    clock: float | None,
    cycles: int | None,
    each: float | None,
    steady: float | None,
    energy: float | None,
) -> dict[str, float | None]:
    """Return the JSON fields `clock_mhz`, `milliseconds`, `inferences_per_second` and `milliwatts`.

    Parameters
    ----------
    clock : float or None
        Clock frequency in MHz; None: all fields are None.
    cycles : int or None
        Cycles of all samples; None on a machine without a clock.
    each : float or None
        Cycles of one sample from a cold start, from which the milliseconds are computed.
    steady : float or None
        Cycles per sample in a stream, from which the inferences per second are computed; None: `each` is used.
    energy : float or None
        Energy of all samples in microjoules, as `compiler.cost.energy` estimates it.
    """
    milliseconds = rate = milliwatts = None
    if clock is not None and cycles and each:
        milliseconds = each / (clock * 1e3)
        rate = clock * 1e6 / (steady or each)
        milliwatts = None if energy is None else energy * clock / cycles * 1e3  # uJ / us is W
    return {
        "clock_mhz": clock,
        "milliseconds": milliseconds,
        "inferences_per_second": rate,
        "milliwatts": milliwatts,
    }
