"""Tests of `mla serve --power-cap` and `--deadline` on the RTL: energy, power over time, outputs, errors."""

import json

import pytest

from compiler.api import compile
from compiler.cost.energy import PowerState, leakage_mw
from compiler.options import DramTiming
from compiler.runtime.session import Session, dram_bytes
from compiler.serving.power import STATES, measured_segments, throttled, zero_inputs
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from scripts.networks.digits import MODEL
from tests.serving.test_power import extra_energy, sampled_peak

N4 = load_target("n4")


@pytest.fixture(scope="module")
def fixed() -> dict[PowerState, tuple[float, float]]:
    """Return the milliseconds and the additional energy of a request of the digits in each power state."""
    network, out = compile(MODEL, "n4"), {}
    with RtlDevice(N4, dram_bytes(network)) as device:
        session = Session(device, network)
        session.run(zero_inputs(network))
        for state in STATES:
            segments = measured_segments(session, throttled(DramTiming(), state))
            out[state] = sum(each.cycles for each in segments) / 1e5, extra_energy(segments, state)
    return out


def test_slower_clocks_take_longer_but_not_more_than_in_proportion(fixed) -> None:
    times = [taken for taken, _ in fixed.values()]
    assert times == sorted(times, reverse=True)
    for state, (taken, _) in fixed.items():
        assert times[-1] < taken <= times[-1] / state.share * 1.01 or state.share == 1


@pytest.mark.parametrize("deadline", [0.35, 1.2])
def test_energy_at_a_deadline(mla, tmp_path, fixed, deadline: float) -> None:
    """Each request meets the deadline with at most 5% more energy than in the best power state."""
    report, out = tmp_path / "report.json", tmp_path / "lines"
    options = ("--target", "n4", "--requests", "4", "--no-db", "--deadline", str(deadline))
    result = mla("serve", MODEL, *options, "--json", report, "--out", out)
    assert result.status == 0, result.err
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    found = [line["time"] | line["power"] for line in lines]
    best = min(energy for taken, energy in fixed.values() if taken <= deadline)
    idle = leakage_mw(N4, STATES[0].volts)
    for each in found:
        assert each["deadline_met"] and each["finish_ms"] - each["arrival_ms"] <= deadline
        extra = each["energy_uj"] - idle * (each["finish_ms"] - each["start_ms"])
        assert extra <= 1.05 * best
    power = json.loads(report.read_text())["power"]
    assert power["deadlines_missed"] == 0 and [each["arrival_ms"] for each in found] == pytest.approx(
        [deadline * number for number in range(4)]
    )


def test_cap_is_kept_in_every_window(mla, tmp_path) -> None:
    """Requests are slowed or delayed, and their outputs do not change."""
    plain, capped = tmp_path / "plain", tmp_path / "capped"
    report, options = (
        tmp_path / "report.json",
        ("--target", "n4", "--requests", "8", "--no-db", "--seed", "3"),
    )
    assert mla("serve", MODEL, *options, "--out", plain).status == 0
    # The machine takes about 50 mW in the fastest state.
    limits = ("--power-cap", "25", "--clock", "100", "--json", report)
    result = mla("serve", MODEL, *options, *limits, "--out", capped)
    assert result.status == 0 and "over 1 ms" in result.err, result.err
    first, second = (
        [json.loads(line)["outputs"] for line in path.read_text().splitlines()] for path in (plain, capped)
    )
    assert first == second
    power = json.loads(report.read_text())["power"]
    assert power["peak_mw"] <= 25 and max(milliwatts for _, milliwatts in power["trace"]) > 25
    assert sampled_peak(power["trace"], 0.001) <= 25 * 1.005
    assert power["trace"][-1][0] == power["milliseconds"] and power["energy_uj"] > 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--power-cap", "1"), "1 mW cannot be kept"),
        (("--power-cap", "0"), "must be a number above 0"),
        (("--deadline", "nan"), "must be a number above 0"),
        (("--deadline", "1", "--adapt"), "--adapt cannot be combined with --deadline"),
        (("--power-cap", "9", "--reuse"), "--reuse cannot be combined with --power-cap"),
        (("--power-cap", "9", "--batches", "1,2"), "--batches cannot be combined with --power-cap"),
        (("--power-cap", "9", "--conditions-at", "3:latency=9"), "--conditions-at cannot be combined"),
        (("--clock", "50"), "--clock requires --adapt, --power-cap, --deadline, --interval or --arrivals"),
        (("--deadline", "1", "--device", "golden"), "--deadline needs --device rtl"),
    ],
)
def test_errors(mla, options: tuple[str, ...], text: str) -> None:
    result = mla("serve", MODEL, "--target", "n4", "--requests", "2", *options)
    assert result.status == 2 and text in result.err.splitlines()[-1], result.err
