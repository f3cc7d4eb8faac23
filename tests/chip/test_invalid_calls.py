"""All devices reject invalid calls with the same message and keep working."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cosim.device import Device, RegisterError
from cosim.dram import DramFault, DramTooSmallError
from cosim.driver import Driver
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from hw.bus.register_map import ADDRESS, ID
from hw.config import load_target
from hw.errors import InputError
from tests.chip.conftest import Machine

CONFIG = load_target("n4")
LIMIT = ADDRESS["STEP_LIMIT"]
OFF_GRID = "a register's address must be a multiple of 4 in 0..0xfffc, not "

Call = Callable[[Any], object]


def _row(device: Device, dtype: type) -> np.ndarray:
    return np.zeros((1, device.config.n), dtype)


#: Calls and the error that each of them raises. Some values have the wrong type, hence Any.
BAD_CALLS: dict[str, tuple[Call, type[Exception], str]] = {
    "read odd": (lambda d: d.read_reg(2), InputError, OFF_GRID + "0x2"),
    "read beyond": (lambda d: d.read_reg(1 << 40), InputError, OFF_GRID + "0x10000000000"),
    "read negative": (lambda d: d.read_reg(-4), InputError, OFF_GRID + "-0x4"),
    "read no number": (lambda d: d.read_reg("ID"), InputError, "address must be an integer, not 'ID'"),
    "read none": (lambda d: d.read_reg(0xFFFC), RegisterError, "the read of register 0xfffc answered SLVERR"),
    "read one of many": (lambda d: d.read_regs([0, 0xFFFC]), RegisterError, "register 0xfffc"),
    "write odd": (lambda d: d.write_regs([(0xA5, 1)]), InputError, OFF_GRID + "0xa5"),
    "write none": (lambda d: d.write_reg(0xFFFC, 1), RegisterError, "the write of register 0xfffc answered"),
    "write 33 bits": (
        lambda d: d.write_reg(LIMIT, 1 << 32),
        InputError,
        "value must fit 32 bits, not 0x1000",
    ),
    "write too low": (lambda d: d.write_reg(LIMIT, -(1 << 31) - 1), InputError, "must fit 32 bits, not -0x8"),
    "write float": (lambda d: d.write_reg(LIMIT, 1.0), InputError, "value must be an integer, not 1.0"),
    "delay": (lambda d: d.write_regs([], -5), InputError, "delay_cycles must be 0 or more, not -5"),
    "run back": (lambda d: d.run_cycles(-1), InputError, "cycles must be 0 or more, not -1"),
    "run for ever": (
        lambda d: d.run_cycles(1 << 70),
        InputError,
        "cycles must be at most 4611686018427387904",
    ),
    "run digits": (lambda d: d.run_cycles(10**5000), InputError, "not an integer of 16610 bits"),
    "read digits": (lambda d: d.read_reg(10**5000), InputError, "not an integer of 16610 bits"),
    "write digits": (lambda d: d.write_reg(LIMIT, 10**5000), InputError, "not an integer of 16610 bits"),
    "sp digits": (lambda d: d.read_sp(10**5000, 1), InputError, "not an integer of 16610 bits"),
    "latency digits": (lambda d: d.set_dram_timing(10**5000), InputError, "an integer of 16610 bits"),
    "rate digits": (lambda d: d.set_dram_timing(1, 10**5000), InputError, "not an integer of 16610 bits"),
    "run half": (lambda d: d.run_cycles(0.5), InputError, "cycles must be an integer, not 0.5"),
    "run true": (lambda d: d.run_cycles(True), InputError, "cycles must be an integer, not True"),
    "wait back": (lambda d: d.wait_irq(-1), InputError, "timeout_cycles must be 0 or more, not -1"),
    "sp beyond": (lambda d: d.read_sp(1 << 20, 4), InputError, "bytes must lie in 0..65536, not 1048576.."),
    "sp across": (lambda d: d.read_sp(65534, 4), InputError, "lie in 0..65536, not 65534..65538"),
    "sp before": (lambda d: d.read_sp(-4, 4), InputError, "scratchpad bytes must lie in"),
    "sp count": (lambda d: d.read_sp(0, -4), InputError, "scratchpad bytes must lie in"),
    "sp float": (lambda d: d.read_sp(0.0, 4), InputError, "must be an integer, not 0.0"),
    "sp write": (lambda d: d.write_sp(65534, np.zeros(4, np.uint8)), InputError, "scratchpad bytes must lie"),
    "sp list": (lambda d: d.write_sp(0, [1, 2]), InputError, "must be an array of numbers, not list"),
    "sp objects": (lambda d: d.write_sp(0, np.array([None])), InputError, "not object of shape (1,)"),
    "acc before": (lambda d: d.read_acc(-1, 4), InputError, "accumulator rows must lie in 0.."),
    "acc beyond": (lambda d: d.read_acc(1 << 20, 1), InputError, "accumulator rows must lie in 0.."),
    "acc write": (lambda d: d.write_acc(1 << 20, _row(d, np.int32)), InputError, "rows must lie in"),
    "acc shape": (
        lambda d: d.write_acc(0, np.zeros((1, 3), np.int32)),
        InputError,
        "be int32 of shape (rows, ",
    ),
    "acc type": (lambda d: d.write_acc(0, _row(d, float)), InputError, "must be int32 of shape (rows, "),
    "latency back": (
        lambda d: d.set_dram_timing(-1),
        InputError,
        "latency must be 1..1000000 cycles, not -1",
    ),
    "latency true": (lambda d: d.set_dram_timing(True), InputError, "latency must be an integer, not True"),
    "no bandwidth": (lambda d: d.set_dram_timing(10, 0), InputError, "bytes_per_cycle must be in 0.001..1"),
    "nan": (lambda d: d.set_dram_timing(10, float("nan")), InputError, "bytes_per_cycle must be in 0.001"),
    "infinite": (lambda d: d.set_dram_timing(10, float("inf")), InputError, "bytes_per_cycle must be in"),
    "letters": (
        lambda d: d.set_dram_timing(10, "a"),
        InputError,
        "bytes_per_cycle must be in 0.001..1000000",
    ),
    "faults": (lambda d: d.set_dram_faults([(0, 4)]), InputError, "must be a DramFault, not (0, 4)"),
    "fault float": (lambda d: d.set_dram_faults([DramFault(0.0, 4)]), InputError, "must be an integer"),  # pyright: ignore[reportArgumentType]
    "fault far": (lambda d: d.set_dram_faults([DramFault(0, 1 << 70)]), InputError, "end at 0x100000000 or"),
    "operand": (
        lambda d: Driver(d).enqueue(1, [0, 1 << 40]),
        InputError,
        "operand 1 must fit 32 bits, not 0x1",
    ),
    "register": (lambda d: Driver(d).set("STEP_LIMIT", 1 << 40), InputError, "must fit 32 bits, not 0x1000"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_calls_raise_and_device_keeps_working(device: Device, name: str) -> None:
    call, error, message = BAD_CALLS[name]
    with pytest.raises(error) as raised:
        call(device)
    assert message in str(raised.value) and type(raised.value) is error
    device.reset()
    assert device.read_reg(0) == ID
    Machine(device).assert_alive()


def test_rejected_call_writes_nothing(device: Device) -> None:
    """Arguments are checked before any write; an unknown register does not prevent writes to other registers."""
    with pytest.raises(InputError):
        device.write_regs([(LIMIT, 7), (2, 1)])
    assert device.read_reg(LIMIT) == 0
    with pytest.raises(RegisterError):
        device.write_regs([(LIMIT, 7), (0xFFFC, 1), (ADDRESS["WATCHDOG"], -1)])
    assert device.read_regs([LIMIT, ADDRESS["WATCHDOG"]]) == [7, 0xFFFFFFFF]
    last = device.config.sp_bytes - 2
    device.write_sp(last, np.array([3, 4], np.uint8))
    with pytest.raises(InputError):
        device.write_sp(last, np.ones(4, np.uint8))
    assert device.read_sp(last, 2).tolist() == [3, 4]


def test_memories_accept_arrays_of_any_layout(device: Device) -> None:
    words = np.array([[0x01020304, -1], [7, 1 << 30]], "<i4")
    device.write_sp(3, words)
    assert device.read_sp(3, 16).tobytes() == words.tobytes()
    n = device.config.n
    rows = np.arange(2 * n, dtype=np.int32).reshape(2, n).T.copy().T  # not contiguous
    device.write_acc(1, rows)
    assert device.read_acc(1, 2).tolist() == rows.tolist()


@pytest.mark.parametrize(
    ("size", "error", "message"),
    [
        (0, DramTooSmallError, "dram_bytes must be at least 4096, not 0"),
        (100, DramTooSmallError, "dram_bytes must be at least 4096, not 100"),
        (5000, InputError, "dram_bytes must be a multiple of 4096 up to"),
        pytest.param(10**5000, InputError, "dram_bytes must be a multiple of 4096 up to", id="5001 digits"),
        (1 << 33, InputError, "dram_bytes must be a multiple of 4096 up to"),
        (4096.0, InputError, "dram_bytes must be an integer, not 4096.0"),
        ("x", InputError, "dram_bytes must be an integer, not 'x'"),
    ],
)
@pytest.mark.parametrize("kind", [GoldenDevice, RtlDevice])
def test_invalid_dram_sizes(kind: Any, size: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        kind(CONFIG, size)
    assert type(raised.value) is error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1}, "seed must be in 0..2147483647, not -1"),
        ({"seed": 1 << 70}, "seed must be in 0..2147483647"),
        ({"latency": True}, "latency must be an integer, not True"),
        ({"latency": 0}, "latency must be 1..1000000 cycles, not 0"),
        ({"bytes_per_cycle": float("nan")}, "bytes_per_cycle must be in 0.001..1000000, not nan"),
        ({"bytes_per_cycle": 0}, "bytes_per_cycle must be in 0.001..1000000, not 0"),
    ],
)
def test_invalid_rtl_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        RtlDevice(CONFIG, **options)


def test_invalid_golden_order_seed() -> None:
    with pytest.raises(InputError, match="order_seed must be an integer, not 'a'"):
        GoldenDevice(CONFIG, order_seed="a")  # pyright: ignore[reportArgumentType]
