"""The bars of simulation speed, and whether a machine that was measured clears them."""

from typing import Any

#: Kilohertz of simulated clock, on the host that the project is developed on.
SIM_KHZ = 150.0
#: Least share of the speed of the bare array, simulated on the same host at the same time.
BARE_ARRAY_SHARE = 0.25
#: Side of the bare array: a machine of another size cannot be compared with it.
BARE_ARRAY_N = 16


def bare_array_share(sim_khz: float | None, bare_array_khz: float) -> float:
    """Speed of the simulated machine in terms of that of the bare array."""
    return (sim_khz or 0) / bare_array_khz


def bars(sim_khz: float | None, bare_array_khz: float) -> dict[str, Any]:
    """Both bars and whether they are cleared, as `mla bench` reports them.

    Parameters
    ----------
    sim_khz, bare_array_khz : float
        Measured cycles simulated per millisecond; `sim_khz` is None for a machine without a clock.
    """
    return {
        "sim_khz": SIM_KHZ,
        "sim_khz_met": (sim_khz or 0) >= SIM_KHZ,
        "bare_array_share": BARE_ARRAY_SHARE,
        "bare_array_share_met": bare_array_share(sim_khz, bare_array_khz) >= BARE_ARRAY_SHARE,
    }
