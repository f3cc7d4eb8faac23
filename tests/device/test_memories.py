"""Tests of direct access to scratchpad and accumulator of a device."""

import numpy as np
import pytest

from cosim.rtl.rtl_device import RtlDevice
from hw.errors import InputError
from tests.support.sim_chip import Reg
from tests.support.sim_device import CLEAR, CONFIG, N


def test_scratchpad_round_trip(device: RtlDevice):
    data = np.random.default_rng(1).integers(0, 256, CONFIG.sp_bytes, np.uint8)
    device.write_sp(0, data)
    np.testing.assert_array_equal(device.read_sp(0, CONFIG.sp_bytes), data)
    device.write_sp(37, np.arange(50, dtype=np.uint8))
    data[37:87] = np.arange(50)
    np.testing.assert_array_equal(device.read_sp(0, CONFIG.sp_bytes), data)
    np.testing.assert_array_equal(device.read_sp(33, 7), data[33:40])


def test_accumulator_round_trip(device: RtlDevice):
    data = np.random.default_rng(2).integers(-(2**31), 2**31, (CONFIG.acc_rows, N), np.int32)
    device.write_acc(0, data)
    np.testing.assert_array_equal(device.read_acc(0, CONFIG.acc_rows), data)
    device.write_acc(5, -data[:3])
    data[5:8] = -data[:3]
    np.testing.assert_array_equal(device.read_acc(4, 6), data[4:10])


def test_hardware_reads_written_rows(device: RtlDevice):
    """Row r of scratchpad bank b is word r // 2 of half r % 2; accumulator banks are not divided."""
    rows = np.arange(CONFIG.sp_rows, dtype="<u4")[:, None].repeat(N // 4, 1) + 1000
    device.write_sp(0, rows)
    device.write_acc(0, np.arange(CONFIG.acc_rows, dtype=np.int32)[:, None].repeat(N, 1) - 7)
    per_bank = CONFIG.sp_rows // 8
    for bank, word, half in ((0, 0, 0), (0, 3, 1), (5, 7, 0), (7, 7, 1)):
        device.write_reg(Reg.SELECT, (2 * bank + half) << 8 | word)
        device.run_cycles(2)
        assert device.read_reg(Reg.SP_WORD) == 1000 + bank * per_bank + 2 * word + half
    device.write_reg(Reg.SELECT, 2 << 8 | 3)
    device.run_cycles(2)
    row = 2 * (CONFIG.acc_rows // 4) + 3
    assert device.read_reg(Reg.ACC_WORD) == row - 7
    device.write_reg(Reg.GO, CLEAR)
    assert not device.read_acc(row, 1).any()
    assert device.read_acc(row + 1, 1).all()


def test_spans_out_of_range_are_rejected(device: RtlDevice):
    with pytest.raises(InputError, match="scratchpad bytes must lie in"):
        device.read_sp(CONFIG.sp_bytes - 1, 2)
    with pytest.raises(InputError, match="accumulator rows must lie in"):
        device.write_acc(-1, np.zeros((1, N), np.int32))
