"""Time and power at a clock frequency, from cycles and energy."""


def at_clock(
    clock: float | None,
    cycles: int | None,
    each: float | None,
    steady: float | None,
    energy: float | None,
) -> dict[str, float | None]:
    """The JSON fields `clock_mhz`, `milliseconds`, `inferences_per_second` and `milliwatts`.

    Parameters
    ----------
    clock : float or None
        Clock frequency in MHz; None: all fields are None.
    cycles : int or None
        Cycles of all samples; None on a machine without a clock.
    each : float or None
        Cycles of one sample that begins with everything cold: gives the milliseconds.
    steady : float or None
        Cycles of one sample in a stream: gives the inferences per second; None: `each` does.
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
