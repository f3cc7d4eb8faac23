"""Simulation speed targets and their evaluation."""

from typing import Any

#: Target speed in kHz of simulated clock, on the development host.
SIM_KHZ = 150.0
#: Minimum speed relative to the bare array, simulated on the same host at the same time.
BARE_ARRAY_SHARE = 0.25
#: Size of the bare array; chips of another size cannot be compared with it.
BARE_ARRAY_N = 16


def bare_array_share(sim_khz: float | None, bare_array_khz: float) -> float:
    """Return the simulation speed of the chip relative to that of the bare array."""
    return (sim_khz or 0) / bare_array_khz


def bars(sim_khz: float | None, bare_array_khz: float) -> dict[str, Any]:
    """Return both targets and whether they are met, as reported by `mla bench`.

    Parameters
    ----------
    sim_khz, bare_array_khz : float
        Simulated cycles per millisecond; `sim_khz` is None for a device without a clock.
    """
    return {
        "sim_khz": SIM_KHZ,
        "sim_khz_met": (sim_khz or 0) >= SIM_KHZ,
        "bare_array_share": BARE_ARRAY_SHARE,
        "bare_array_share_met": bare_array_share(sim_khz, bare_array_khz) >= BARE_ARRAY_SHARE,
    }
