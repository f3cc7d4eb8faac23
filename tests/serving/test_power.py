"""Power management: power over time, choice of power states, and the energy and power of served requests."""

import random

import numpy as np
import pytest

from compiler.cost.energy import POWER_STATES, PowerState, leakage_mw
from compiler.serving.power import (
    STATES,
    WINDOW_MS,
    PowerGovernor,
    PowerLimits,
    PowerSegment,
    PowerTrace,
)
from hw.config import MlaConfig, load_target
from hw.errors import InputError
from tests.support.seeds import random_seed

N4 = load_target("n4")


def sampled_peak(steps: list[tuple[float, float]], step: float = 0.002) -> float:
    """Return the highest mean power of windows at multiples of `step` milliseconds, by adding up samples of energy."""
    ends, powers = np.array([end for end, _ in steps]), np.array([power for _, power in steps])
    times = np.arange(step / 2, ends[-1], step)
    samples = powers[np.searchsorted(ends, times)] * step
    total = np.concatenate(([0.0], np.cumsum(samples)))
    width = round(WINDOW_MS / step)
    padded = np.concatenate((np.zeros(width), total))
    return float((padded[width:] - padded[:-width]).max()) / WINDOW_MS


def random_segments(rng: random.Random) -> tuple[PowerSegment, ...]:
    """Return the layers of a request at a clock of 100 MHz, some of which take much power."""
    out = []
    for _ in range(rng.randint(1, 8)):
        cycles = rng.uniform(500, rng.choice((5_000, 300_000)))
        milliwatts = rng.choice((5.0, 50.0, 300.0)) * rng.uniform(0.5, 2)
        energy, share = milliwatts * cycles / 1e5, rng.random()
        out.append(PowerSegment(cycles, share * energy, (1 - share) * energy))
    return tuple(out)


def stretched(segments: tuple[PowerSegment, ...], rng: random.Random):
    """Return a function that gives the segments in a power state: slower clocks take up to as many times longer."""
    hidden = [rng.random() for _ in segments]

    def found(state: PowerState) -> tuple[PowerSegment, ...]:
        longer = [1 + (1 / state.share - 1) * each for each in hidden]
        return tuple(
            PowerSegment(each.cycles * by, each.chip_uj, each.dram_uj)
            for each, by in zip(segments, longer, strict=True)
        )

    return found


def test_peak_of_a_trace_equals_that_of_samples() -> None:
    rng = random.Random(random_seed())
    for _ in range(60):
        trace = PowerTrace()
        steps = [(rng.choice((0.01, 0.3, 2.0)) * rng.uniform(0.5, 2), rng.uniform(0, 300)) for _ in range(12)]
        for taken, power in steps:
            more = [(taken, taken * power)]
            before = trace.peak()
            ahead = trace.peak_with(more)
            trace.extend(more)
            assert trace.peak() == pytest.approx(max(before, ahead))
        ends = np.cumsum([taken for taken, _ in steps])
        assert [end for end, _ in trace.steps()] == pytest.approx(list(ends))
        wanted = sampled_peak([(end, power) for end, (_, power) in zip(ends, steps, strict=True)])
        assert trace.peak() == pytest.approx(wanted, rel=0.03, abs=1.0)
        assert trace.total_uj == pytest.approx(sum(taken * power for taken, power in steps))


def test_random_streams_keep_the_cap_and_take_the_least_energy() -> None:
    """No window exceeds the cap; a deadline that any state meets is met, with the energy of the best state."""
    rng, kept, slowed, refused = random.Random(random_seed()), 0, 0, 0
    for _ in range(200):
        segments = stretched(random_segments(rng), rng)
        limits = PowerLimits(
            100.0, rng.choice((None, rng.uniform(40, 400))), rng.choice((None, rng.uniform(0.2, 20)))
        )
        interval = rng.choice((None, rng.uniform(0.5, 20)))
        try:
            governor = PowerGovernor(N4, segments, limits)
        except InputError as error:
            assert limits.cap is not None and "--power-cap" in str(error)
            lowest = min(alone(segments(state), state) for state in STATES)
            assert lowest > 0.99 * limits.cap
            refused += 1
            continue
        arrival = 0.0
        for number in range(12):
            arrival = governor.trace.end if interval is None else number * interval
            plan = governor.plan(arrival)
            cycles = sum(each.cycles for each in segments(plan.state))
            taken = cycles / 1e5
            assert plan.start >= max(arrival, governor.trace.end)
            if limits.cap is None and limits.deadline is not None:
                costs = {
                    state: extra_energy(segments(state), state)
                    for state in STATES
                    if max(arrival, governor.trace.end) + sum(each.cycles for each in segments(state)) / 1e5
                    <= arrival + limits.deadline
                }
                if costs:
                    assert extra_energy(segments(plan.state), plan.state) <= 1.0011 * min(costs.values())
                    slowed += plan.state.share < 1
            time, power = governor.record(plan, arrival, cycles * rng.uniform(0.999, 1.001))
            assert time.finish_ms == pytest.approx(plan.start + taken, rel=0.002, abs=0.002)
            if limits.deadline is not None:
                assert power.deadline_met == (time.finish_ms <= arrival + limits.deadline)
        if limits.cap is not None:
            steps = list(governor.trace.steps())
            assert governor.trace.peak() <= limits.cap
            assert sampled_peak(steps, 0.005) <= 1.05 * limits.cap
            kept += any(power > limits.cap for _, power in steps)
    assert kept and slowed and refused


def alone(segments: tuple[PowerSegment, ...], state: PowerState) -> float:
    """Return the highest mean power of a request after an idle machine."""
    steps, end = [(WINDOW_MS, leakage_mw(N4, STATES[0].volts))], WINDOW_MS
    for each in segments:
        taken = each.cycles / 1e5
        end += taken
        energy = each.chip_uj * (state.volts / 0.9) ** 2 + each.dram_uj
        steps.append((end, energy / taken + leakage_mw(N4, state.volts)))
    trace = PowerTrace()
    before = 0.0
    for end, power in steps:
        trace.extend([(end - before, (end - before) * power)])
        before = end
    return trace.peak()


def extra_energy(segments: tuple[PowerSegment, ...], state: PowerState) -> float:
    """Return the energy of a request in addition to that of an idle machine."""
    taken = sum(each.cycles for each in segments) / 1e5
    leakage = leakage_mw(N4, state.volts) - leakage_mw(N4, STATES[0].volts)
    chip, dram = sum(each.chip_uj for each in segments), sum(each.dram_uj for each in segments)
    return chip * (state.volts / 0.9) ** 2 + dram + leakage * taken


def test_leakage_of_the_memories() -> None:
    """The current per bit is 2.2 nA at 0.7 V and grows with the fifth power of the voltage."""
    config = MlaConfig(n=4, sp_bytes=1 << 15, acc_bytes=1 << 13, wis_words=2048)
    bits = 8 * (32 + 8) * 1024 + 64 * 2048
    assert leakage_mw(config, 0.7) == pytest.approx(bits * 2.245e-9 * 0.7 * 1e3, rel=1e-3)
    assert leakage_mw(config, 1.0) == pytest.approx(leakage_mw(config, 0.7) / 0.7**6, rel=1e-6)
    volts = [state.volts for state in POWER_STATES]
    assert volts == sorted(volts) and POWER_STATES[-1].share == 1.0
