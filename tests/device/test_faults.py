"""Tests of addresses with bus errors, and of a chip that violates the bus protocol."""

import pytest

from cosim.device import BusProtocolError
from cosim.dram import DramFault, DramTooSmallError
from cosim.rtl.rtl_device import RtlDevice
from hw.errors import InputError
from tests.support.sim_chip import Reg
from tests.support.sim_device import CONFIG, DRAM_BYTES, GO_READ, GO_WRITE, ROW, traffic, verilog


@pytest.mark.parametrize("response", ["SLVERR", "DECERR"])
def test_faulty_reads_return_errors(device: RtlDevice, response: str):
    device.set_dram_faults([DramFault(0x100, 0x100 + 3 * ROW, response, on_write=False)])  # type: ignore[arg-type]
    assert traffic(device, GO_READ, 64)[Reg.READ_ERRORS] == 3
    assert traffic(device, GO_WRITE, 64, write_base=0)[Reg.WRITE_ERRORS] == 0


def test_faulty_writes_change_nothing(device: RtlDevice):
    device.set_dram_faults([DramFault(5 * ROW, 5 * ROW + 1, on_read=False)])
    notes = traffic(device, GO_WRITE, 64, write_base=0)
    assert notes[Reg.WRITE_ERRORS] == 1  # one of the four bursts
    first_words = device.dram.view("<u4").reshape(-1, ROW // 4)[:64, 0].tolist()
    assert first_words == [0 if row == 5 else row for row in range(64)]
    assert traffic(device, GO_READ, 64)[Reg.READ_ERRORS] == 0


def test_new_faults_replace_old_ones(device: RtlDevice):
    device.set_dram_faults([DramFault(0, DRAM_BYTES)])
    device.set_dram_faults([])
    assert traffic(device, GO_READ, 16)[Reg.READ_ERRORS] == 0


def test_decode_error_beyond_dram(device: RtlDevice):
    beyond = traffic(device, GO_READ | GO_WRITE, 32, read_base=DRAM_BYTES - 16 * ROW, write_base=DRAM_BYTES)
    assert (beyond[Reg.READ_ERRORS], beyond[Reg.WRITE_ERRORS]) == (16, 2)


def test_burst_across_4_kib_is_reported(device: RtlDevice):
    with pytest.raises(BusProtocolError, match="read burst of 2 beats at 0xff0 crosses a 4 KiB boundary"):
        traffic(device, GO_READ, 2, read_base=4096 - ROW)
    device.reset()
    assert traffic(device, GO_READ, 2, read_base=4096)[Reg.READ_ERRORS] == 0


@pytest.mark.parametrize("size", [0, 1024])
def test_too_small_dram_is_rejected(size: int):
    with pytest.raises(DramTooSmallError, match=f"dram_bytes must be at least 4096, not {size}"):
        RtlDevice(CONFIG, size, verilog=verilog())


@pytest.mark.parametrize("size", [4097, 1 << 40])
def test_too_large_dram_is_rejected(size: int):
    with pytest.raises(InputError, match="dram_bytes must be a multiple of 4096"):
        RtlDevice(CONFIG, size, verilog=verilog())
