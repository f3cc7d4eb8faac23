"""Tests of register accesses and simulated time."""

import pytest

from cosim.device import RegisterError
from cosim.rtl.rtl_device import RtlDevice
from hw.errors import InputError
from tests.support.sim_chip import IDENTITY, Reg


def test_read_and_write(device: RtlDevice):
    assert device.read_reg(Reg.IDENTITY) == IDENTITY
    device.write_reg(Reg.READ_BASE, 0x89ABCDEF)
    assert device.read_reg(Reg.READ_BASE) == 0x89ABCDEF


def test_batch_keeps_its_order(device: RtlDevice):
    device.write_regs([(Reg.READ_BASE, 1), (Reg.WRITE_BASE, 2), (Reg.READ_BASE, 3)])
    assert device.read_regs([Reg.READ_BASE, Reg.WRITE_BASE]) == [3, 2]


def test_unknown_register_is_named(device: RtlDevice):
    with pytest.raises(RegisterError, match="read of register 0x1000 answered SLVERR"):
        device.read_reg(0x1000)
    with pytest.raises(RegisterError, match="write of register 0x0ffc answered SLVERR"):
        device.write_regs([(Reg.READ_BASE, 7), (0xFFC, 1), (Reg.WRITE_BASE, 8)])
    assert device.read_regs([Reg.READ_BASE, Reg.WRITE_BASE]) == [7, 8]


def test_time_advances_only_in_calls(device: RtlDevice):
    assert device.cycle == 0
    device.run_cycles(1234)
    assert device.cycle == 1234
    device.run_cycles(0)
    assert device.cycle == 1234
    before = device.read_reg(Reg.NOW)
    access = device.cycle - 1234
    assert device.read_reg(Reg.NOW) == before + access


def test_negative_cycles_are_rejected(device: RtlDevice):
    with pytest.raises(InputError, match="cycles must be 0 or more, not -1"):
        device.run_cycles(-1)


@pytest.mark.parametrize("delay", [0, 1, 7, 5000])
def test_delayed_write_has_exact_delay(device: RtlDevice, delay: int):
    """A delayed write takes effect exactly `delay` cycles later than an immediate one."""
    device.write_regs([(Reg.ALARM, 1)], delay)
    landed = device.cycle
    device.reset()
    device.write_regs([(Reg.ALARM, 1)], 0)
    assert landed == device.cycle + delay


def test_interrupt_ends_the_wait_at_its_cycle(device: RtlDevice):
    device.write_reg(Reg.ALARM, 5000)
    assert not device.wait_irq(100)
    waited_from = device.cycle
    assert device.wait_irq(100_000)
    assert device.cycle == 5000
    assert waited_from < 200
    assert device.wait_irq(100)
    assert device.cycle == 5000


def test_wait_without_interrupt_takes_exactly_its_limit(device: RtlDevice):
    assert not device.wait_irq(777)
    assert device.cycle == 777


def test_runs_are_reproducible_to_the_cycle(device: RtlDevice):
    def story() -> list[int]:
        device.reset()
        device.write_regs([(Reg.BEATS, 100), (Reg.GO, 3)], 13)
        device.run_cycles(400)
        return [*device.read_regs([Reg.READ_LAST, Reg.WRITE_ANSWERED, Reg.NOW]), device.cycle]

    assert story() == story()


def test_started_accesses_run_while_the_caller_continues(device: RtlDevice):
    finish = device.start_accesses(
        [[(Reg.READ_BASE, 5), (Reg.READ_BASE, None)], [(Reg.NOW, None), (Reg.READ_BASE, 6)]], 1000
    )
    other = device.start_accesses([[(Reg.READ_BASE, None)]], 0)
    assert device.read_reg(Reg.READ_BASE) == 6  # waits for the started accesses
    ((value,), (now,)) = finish()
    assert value == 5 and now > 1000 and finish() == [[5], [now]]
    assert other() == [[6]]
