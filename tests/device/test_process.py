"""Tests of the simulator process: its death, the death of its client, interrupts, several processes at once."""

import inspect
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from pygpi import entry

from cosim.device import SimulatorDiedError
from cosim.device_pool import DevicePool
from cosim.rtl.process import ENTRY_POINTS
from cosim.rtl.rtl_device import RtlDevice
from hw.errors import InputError
from tests.support.sim_chip import Reg
from tests.support.sim_device import DRAM_BYTES, GO_READ, is_running, open_sim, traffic

ROOT = Path(__file__).parents[2]

CLIENT = """
from tests.support.sim_device import open_sim
device = open_sim()
print(device.pid, flush=True)
{then}
"""


def wait_until_gone(pid: int, seconds: float = 10) -> None:
    """Fail unless the process ends within the time limit."""
    deadline = time.monotonic() + seconds
    while is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.02)


def start_client(then: str) -> tuple[subprocess.Popen, int]:
    """Start a Python process that opens a device and executes `then`; return it and the process id of its simulator."""
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT.format(then=then)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert client.stdout
    return client, int(client.stdout.readline())


def test_killed_while_idle():
    device = open_sim()
    os.kill(device.pid, signal.SIGKILL)
    with pytest.raises(
        SimulatorDiedError, match="the simulator process ended, killed by SIGKILL without a message"
    ):
        device.read_reg(Reg.IDENTITY)
    with pytest.raises(SimulatorDiedError, match="has been closed"):
        device.read_reg(Reg.IDENTITY)
    device.close()


def test_killed_while_running():
    with open_sim() as device:
        threading.Timer(0.3, os.kill, (device.pid, signal.SIGKILL)).start()
        with pytest.raises(SimulatorDiedError, match="killed by SIGKILL"):
            device.run_cycles(10**12)


def test_close_ends_the_process_and_may_be_repeated():
    device = open_sim()
    device.close()
    assert not is_running(device.pid)
    device.close()
    with pytest.raises(SimulatorDiedError, match="has been closed"):
        device.run_cycles(1)


def test_garbage_collected_device_ends_its_process():
    device = open_sim()
    pid = device.pid
    del device
    wait_until_gone(pid)


@pytest.mark.parametrize("then", ["device.run_cycles(10**12)", "import time; time.sleep(100)"])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_simulator_ends_with_its_client(then: str, how: signal.Signals):
    """The simulator, running or idle, ends when its client is killed by SIGINT (Ctrl-C) or SIGKILL."""
    client, pid = start_client(then)
    time.sleep(0.2)
    assert is_running(pid)
    client.send_signal(how)
    _, errors = client.communicate(timeout=20)
    assert client.returncode != 0
    assert how == signal.SIGKILL or "KeyboardInterrupt" in errors
    wait_until_gone(pid)


def test_exit_without_close_leaves_no_process():
    client, pid = start_client("device.run_cycles(10)")
    _, errors = client.communicate(timeout=20)
    assert (client.returncode, errors) == (0, "")
    wait_until_gone(pid)


def test_two_devices_are_independent():
    with open_sim() as one, open_sim(2 * DRAM_BYTES) as two:
        one.dram[:4] = 1
        one.run_cycles(100)
        assert (one.cycle, two.cycle) == (100, 0)
        totals = [traffic(device, GO_READ, 1)[Reg.READ_TOTAL] for device in (one, two)]
        assert totals == [0x01010101, 0]
        assert two.dram.size == 2 * DRAM_BYTES


def test_pool_keeps_order_and_uses_all_devices():
    def work(device: RtlDevice, item: int) -> tuple[int, int]:
        device.reset()
        device.run_cycles(item * 10_000)
        return device.pid, device.cycle

    with DevicePool(open_sim, 2) as pool:
        results = pool.map(work, range(20))
        assert [cycle for _, cycle in results] == [item * 10_000 for item in range(20)]
        assert {pid for pid, _ in results} == {device.pid for device in pool.devices}
        pids = [device.pid for device in pool.devices]
    assert not any(is_running(pid) for pid in pids)


def test_pool_raises_first_error():
    done: list[int] = []

    def work(device: RtlDevice, item: int) -> None:
        if item == 1:
            raise InputError("item 1 is bad")
        done.append(item)
        device.run_cycles(1000)

    with DevicePool(open_sim, 1) as pool, pytest.raises(InputError, match="item 1 is bad"):
        pool.map(work, range(100))
    assert len(done) < 100
    with pytest.raises(InputError, match="count must be at least 1, not 0"):
        DevicePool(open_sim, 0)


def test_simulators_start_as_cocotb_starts_them_but_without_pytest():
    assert re.findall(r'"(\w+\S*:\w+)",', inspect.getsource(entry.load_entry)) == list(ENTRY_POINTS[1:])
    program = """
import sys
from cosim.rtl.without_pytest import omit_pytest
omit_pytest()
import cocotb.regression, cocotb._init, cosim.rtl.server
print(sorted(name for name in sys.modules if name.partition(".")[0] in ("pytest", "_pytest", "pluggy")))
print(sys.modules["pytest"].__spec__)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "['_pytest', '_pytest.assertion', '_pytest.config', 'pytest']\nNone\n"
