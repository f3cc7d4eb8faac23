"""Drift of conditions: noticed in time, never without reason, and explained."""

import numpy as np
import pytest

from compiler.hpm.drift import Drift, fits, memories
from compiler.hpm.model import Model
from compiler.hpm.points import Op, Point
from compiler.hpm.rows import rows_of
from compiler.measure.conditions import Conditions
from compiler.options import Options
from compiler.pipeline import Prepared
from compiler.schedule.dram import Dram
from hw.config import load_target

LAYERS, INFERENCES, WITHIN, BEFORE = 10, 10_000, 20, 100
N16 = Conditions(load_target("n16"))
PREDICTED = {f"layer {number}": 1000.0 * (number + 1) for number in range(LAYERS)}
NOISES = ("normal", "heavy tails", "rare spikes")


def errors(rng: np.random.Generator, noise: str) -> np.ndarray:
    if noise == "normal":
        return rng.normal(0, 0.02, LAYERS)
    if noise == "heavy tails":
        return 0.01 * rng.standard_t(3, LAYERS)
    spikes = np.where(rng.random(LAYERS) < 0.01, rng.uniform(0, 1, LAYERS), 0)
    return spikes + rng.normal(0, 0.002, LAYERS)


def inference(rng: np.random.Generator, noise: str, wrong: np.ndarray) -> dict[str, float]:
    each = wrong + errors(rng, noise)
    return {
        name: cycles * float(np.exp(e)) for (name, cycles), e in zip(PREDICTED.items(), each, strict=True)
    }


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_alarm_while_nothing_changes(seed: int, noise: str) -> None:
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    drift, usual = Drift(PREDICTED), rng.normal(0, 0.05, LAYERS)
    assert not any(drift.add(inference(rng, noise, usual)) for _ in range(INFERENCES))
    assert drift.drifted == ()
    assert drift.usual() == pytest.approx(dict(zip(PREDICTED, usual, strict=True)), abs=0.02)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("sign", [1, -1])
def test_a_slower_memory_is_noticed(seed: int, noise: str, sign: int) -> None:
    """A quarter of the bandwidth: layers that wait for the bus take up to four times as long, others as before."""
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    drift, usual = Drift(PREDICTED), rng.normal(0, 0.05, LAYERS)
    assert not any(drift.add(inference(rng, noise, usual)) for _ in range(BEFORE))
    slower = np.where(np.arange(LAYERS) < 3, sign * np.log(rng.uniform(1.15, 4, LAYERS)), 0.0)
    after = next(n for n in range(1, BEFORE) if drift.add(inference(rng, noise, usual + slower)))
    assert after <= WITHIN
    assert set(drift.drifted) <= set(list(PREDICTED)[:3])


def test_what_the_memory_has_become() -> None:
    point = Point(
        (12, 12, 32),
        (Op("conv", 64, 1), Op("depthwise", 0, 3), Op("conv", 128, 1), Op("mean"), Op("dense", 300)),
    )
    prepared = Prepared(point.graph(), N16.config, Options(rounding="reference"))
    (stage,) = prepared.lowered(prepared.fusions)
    schedules = prepared.network().schedule.layers
    rng, model, candidates = np.random.default_rng(4), Model((), {}), memories(N16)
    assert candidates[0] == N16 and len({each.key for each in candidates}) == len(candidates) == 20
    for dram in (Dram(100, 4.0), Dram(400, 16.0), Dram(800, 8.0), Dram(100, 16.0)):
        now = Conditions(N16.config, dram)
        usual = dict(zip(schedules, rng.normal(0, 0.05, len(schedules)), strict=True))
        measured = {
            name: row.base * float(np.exp(usual[name] + rng.normal(0, 0.01)))
            for name, row in rows_of(stage, schedules, now).items()
        }
        found = fits(model, stage, schedules, measured, candidates, usual)
        assert found[0].conditions.key == now.key and found[0].error < 0.02
        others = [each.error for each in found if each.conditions.rate != now.rate]
        assert min(others) > 2 * found[0].error
