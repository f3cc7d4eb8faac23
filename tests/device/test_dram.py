"""The memory model has the configured latency and bandwidth in exact cycles, and correct contents."""

from math import ceil

import numpy as np
import pytest

from cosim.rtl.rtl_device import RtlDevice
from hw.errors import InputError
from tests.support.sim_chip import Reg
from tests.support.sim_device import GO_READ, GO_WRITE, ROW, traffic

WRITE_ANSWER_CYCLES = 10


@pytest.mark.parametrize("latency", [1, 2, 100, 400])
def test_first_beat_comes_after_the_latency(device: RtlDevice, latency: int):
    device.set_dram_timing(latency)
    notes = traffic(device, GO_READ, 1)
    assert notes[Reg.READ_FIRST] - notes[Reg.READ_ASKED] == latency


@pytest.mark.parametrize("latency", [1, 100, 400])
def test_requests_are_pipelined(device: RtlDevice, latency: int):
    device.set_dram_timing(latency)
    notes = traffic(device, GO_READ, 1600)
    assert notes[Reg.READ_LAST] - notes[Reg.READ_ASKED] == latency + 1600 - 1


@pytest.mark.parametrize("rows_per_cycle", [1.0, 0.75, 0.5, 0.25, 0.3])
@pytest.mark.parametrize("go", [GO_READ, GO_WRITE])
def test_exact_bandwidth(device: RtlDevice, rows_per_cycle: float, go: int):
    device.set_dram_timing(20, rows_per_cycle * ROW)
    notes = traffic(device, go, 601)
    first, last = (Reg.READ_FIRST, Reg.READ_LAST) if go == GO_READ else (Reg.WRITE_FIRST, Reg.WRITE_LAST)
    assert notes[last] - notes[first] == pytest.approx(600 / rows_per_cycle, abs=ceil(1 / rows_per_cycle) - 1)


@pytest.mark.parametrize("rows_per_cycle", [2.0, 1.0, 0.75, 0.5])
def test_reads_and_writes_share_bandwidth_evenly(device: RtlDevice, rows_per_cycle: float):
    device.set_dram_timing(1, rows_per_cycle * ROW)
    notes = traffic(device, GO_READ | GO_WRITE, 600)
    reading = notes[Reg.READ_LAST] - notes[Reg.READ_FIRST]
    writing = notes[Reg.WRITE_LAST] - notes[Reg.WRITE_FIRST]
    for took in (reading, writing):
        assert took == pytest.approx(1200 / rows_per_cycle, abs=8)


def test_write_response_ten_cycles_after_last_beat(device: RtlDevice):
    for beats in (1, 16, 40):
        notes = traffic(device, GO_WRITE, beats)
        assert notes[Reg.WRITE_ANSWERED] - notes[Reg.WRITE_LAST] == WRITE_ANSWER_CYCLES


def test_stalled_reads_keep_their_data(device: RtlDevice):
    rows = device.dram.view("<u4").reshape(-1, ROW // 4)
    rows[:300] = np.arange(300, dtype=np.uint32)[:, None] * 3 + 1
    notes = traffic(device, GO_READ, 300, slow=1)
    assert notes[Reg.READ_TOTAL] == rows[:300, 0].sum()
    assert notes[Reg.READ_LAST] - notes[Reg.READ_FIRST] == 2 * 299


def test_host_and_chip_share_contents(device: RtlDevice):
    device.dram[:] = 0xEE
    traffic(device, GO_WRITE, 100, write_base=0x4000)
    rows = device.dram.view("<u4").reshape(-1, ROW // 4)
    first = 0x4000 // ROW
    written = (0x4000 + np.arange(100))[:, None].repeat(4, 1)
    np.testing.assert_array_equal(rows[first : first + 100], written)
    assert (rows[:first] == 0xEEEEEEEE).all()
    assert (rows[first + 100 :] == 0xEEEEEEEE).all()


def test_strobes_select_bytes(device: RtlDevice):
    device.dram[:] = 0xEE
    device.write_regs([(Reg.WRITE_BASE, 0), (Reg.BEATS, 2), (Reg.STROBE, 0b0101), (Reg.GO, GO_WRITE)])
    device.run_cycles(100)
    np.testing.assert_array_equal(device.dram[:4], [0, 0xEE, 0, 0xEE])
    np.testing.assert_array_equal(device.dram[ROW : ROW + 4], [1, 0xEE, 0, 0xEE])


def test_timing_can_change_during_traffic(device: RtlDevice):
    device.set_dram_timing(10, ROW / 4)
    device.write_regs([(Reg.BEATS, 400), (Reg.GO, GO_READ)])
    device.run_cycles(410)
    device.set_dram_timing(10, ROW)
    device.run_cycles(2000)
    first, last = device.read_regs([Reg.READ_FIRST, Reg.READ_LAST])
    assert last - first == pytest.approx(400 + 300, abs=6)


def test_traffic_is_counted(device: RtlDevice):
    before = device.dram_traffic()
    traffic(device, GO_READ | GO_WRITE, 33)
    after = device.dram_traffic()
    counted = {key: after[key] - before[key] for key in after}
    assert counted == {"read_beats": 33, "write_beats": 33, "bursts": 6}


@pytest.mark.parametrize(
    ("latency", "rate", "message"),
    [
        (0, 16, "latency must be 1..1000000 cycles, not 0"),
        (100, 0, "bytes_per_cycle must be in 0.001..1000000, not 0"),
        (100, -3, "not -3"),
    ],
)
def test_invalid_timing_is_rejected(device: RtlDevice, latency: int, rate: float, message: str):
    with pytest.raises(InputError, match=message):
        device.set_dram_timing(latency, rate)


@pytest.mark.parametrize("share", [0.0, 0.25, 1 / 3, 0.9])
def test_throttled_clock_is_stalled_evenly(device: RtlDevice, share: float):
    device.set_throttle(share)
    cycle, stalled = device.cycle, device.stalled_cycles
    for passed in (7, 60, 1000):
        device.run_cycles(passed)
        assert device.stalled_cycles - stalled == pytest.approx(share * (device.cycle - cycle), abs=1)
    device.reset()
    assert device.cycle == device.stalled_cycles == 0


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("latency", [100, 400])
def test_latency_passes_while_the_clock_is_stalled(device: RtlDevice, share: float, latency: int):
    device.set_dram_timing(latency)
    device.set_throttle(share)
    notes = traffic(device, GO_READ, 1)  # in cycles of the chip's clock
    assert notes[Reg.READ_FIRST] - notes[Reg.READ_ASKED] == pytest.approx(latency * (1 - share), abs=2)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("rows_per_cycle", [1.0, 0.5, 0.25])
@pytest.mark.parametrize("go", [GO_READ, GO_WRITE])
def test_bandwidth_accumulates_while_the_clock_is_stalled(
    device: RtlDevice, share: float, rows_per_cycle: float, go: int
):
    device.set_dram_timing(20, rows_per_cycle * ROW)
    device.set_throttle(share)
    notes = traffic(device, go, 601)
    first, last = (Reg.READ_FIRST, Reg.READ_LAST) if go == GO_READ else (Reg.WRITE_FIRST, Reg.WRITE_LAST)
    # The bus transfers at most one row per cycle of the chip's clock.
    expected = max(600 * (1 - share) / rows_per_cycle, 600)
    assert notes[last] - notes[first] == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("share", [-0.1, 0.95, float("nan"), "much", True])
def test_throttle_out_of_range(device: RtlDevice, share: float):
    with pytest.raises(InputError, match=r"throttle must be in 0\.\.0\.9"):
        device.set_throttle(share)
