"""A restart returns the chip to its state after a reset with cleared counters, any number of times."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cosim.device import Device, SimulatorDiedError
from cosim.dram import DramFault
from cosim.driver import Driver
from cosim.rtl.process import QUIT_SECONDS
from cosim.rtl.rtl_device import RtlDevice
from hw.bus.register_map import ADDRESS
from hw.config import load_target
from tests.support.sim_device import is_running

ROOT = Path(__file__).parents[2]


def opened() -> RtlDevice:
    """Open a whole chip, which has counters."""
    return RtlDevice(load_target("n4"), 1 << 20)


def settled(device: RtlDevice) -> tuple[int, list[int]]:
    """Return the current cycle and the values of some registers that a driver changes; reads take simulated time."""
    names = ("RING_HEAD", "RING_BASE", "CONTROL", "IRQ_ENABLE")
    return device.cycle, [device.read_reg(ADDRESS[name]) for name in names]


def test_restarts_give_equal_state() -> None:
    with opened() as device:
        found = []
        for _ in range(4):
            device.restart()
            found.append(settled(device))
            Driver(device)
            device.run_cycles(50)
            assert settled(device)[1] != found[0][1]
        assert found == found[:1] * 4
        device.reset()
        assert device.cycle == 0 and settled(device)[1] == found[0][1]
        device.restart()
        assert settled(device) == found[0]


def test_restart_equals_reset_with_cleared_counters() -> None:
    """A restart ends in the same cycle and state as a reset that waits until the counters are cleared."""
    with opened() as device:
        Device.restart(device)
        slow = settled(device)
        device.restart()
        assert settled(device) == slow


def test_restart_keeps_dram_timing_throttle_and_faults() -> None:
    with opened() as device:
        device.restart()
        device.dram[:4] = 1, 2, 3, 4
        device.set_dram_timing(250)
        device.set_throttle(0.5)
        device.set_dram_faults([DramFault(64, 128)])
        first = device.dram_traffic()
        device.restart()
        cycle, stalled = device.cycle, device.stalled_cycles
        device.run_cycles(100)
        assert (device.cycle - cycle, device.stalled_cycles - stalled) == (100, 50)
        assert list(device.dram[:4]) == [1, 2, 3, 4] and device.dram_traffic() == first
        assert (device._timing[0], device._faults) == (250, [DramFault(64, 128)])
        device.dram[0] = 9
        device.restart()
        assert device.dram[0] == 9


def children(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [int(each) for each in found.stdout.split()]


def gone(pid: int) -> bool:
    """Return True if a process ends within ten seconds."""
    end = time.monotonic() + 10
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not is_running(pid)


def test_close_leaves_no_process() -> None:
    device = opened()
    for _ in range(3):
        device.restart()
        assert len(children(device.pid)) == 1
    (fork,), pid = children(device.pid), device.pid
    began = time.monotonic()
    device.close()
    assert time.monotonic() - began < QUIT_SECONDS / 2  # the process replied and did not have to be killed
    assert gone(fork) and gone(pid)


@pytest.mark.parametrize("which", ["process", "fork"])
def test_death_of_process_or_fork_is_reported(which: str) -> None:
    with opened() as device:
        device.restart()
        (fork,) = children(device.pid)
        os.kill(device.pid if which == "process" else fork, signal.SIGKILL)
        assert gone(fork)
        with pytest.raises(SimulatorDiedError, match="killed by SIGKILL"):
            device.run_cycles(10)


def test_simulator_ends_with_client_despite_fork() -> None:
    """The simulator ends with its client, even if a fork of the client keeps the connection open."""
    code = (
        "import os, time\n"
        "from tests.device.test_restart import opened\n"
        "device = opened(); device.restart()\n"
        "if os.fork() == 0:\n"
        "    os.close(1); time.sleep(30); os._exit(0)\n"
        "print(device.pid, flush=True); os.kill(os.getpid(), 9)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False, timeout=120
    )
    assert gone(int(found.stdout))
