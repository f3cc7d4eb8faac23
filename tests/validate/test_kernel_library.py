"""The static validator accepts the kernel library with the operands that the kernels compute."""

import numpy as np
import pytest

from compiler.kernel_library.conv import Conv
from compiler.kernel_library.run import LIBRARY, OPCODES, Operators, program_name, resident_program
from compiler.validate import MacroCall, validate
from cosim.driver import Driver
from cosim.golden import GoldenDevice
from hw.config import load_target
from hw.isa.enums import Reduce
from tests.kernel_library.shapes import image_shape, int8, size
from tests.kernel_library.test_on_rtl import OPERATIONS, sums_of

DRAM_BYTES = 1 << 22


class Recorder(Operators):
    """Kernel library interface that records macro-instructions instead of running them."""

    def __init__(self, config):
        super().__init__(Driver(GoldenDevice(config, DRAM_BYTES)))
        self.calls: list[MacroCall] = []
        self.windows = [(self.driver.memory.used, DRAM_BYTES - 1, 3)]

    def enqueue(self, operation, operands, *, tag=0, irq=False) -> int:
        program = resident_program(program_name(operation))
        self.calls.append(MacroCall(program, tuple(int(value) for value in operands), tag))
        return len(self.calls) - 1


@pytest.fixture(params=["n4", "n8", "n16", "n32"])
def ops(request):
    return Recorder(load_target(request.param))


def random_shapes(ops, rng):
    """Issue every operator with random shapes."""
    n = ops.config.n
    for _ in range(4):
        m, k, columns = (size(rng, n, 90) for _ in range(3))
        ops.gemm(int8(rng, m, k), int8(rng, k, columns), *sums_of(rng, columns, k), a_zp=3)
        ops.gemm_i32(int8(rng, m, k), int8(rng, k, columns), rng.integers(0, 9, (m, columns)), beta=1)
        conv = image_shape(rng, n)
        print(conv)
        weights = int8(rng, conv.out_c, *conv.kernel, conv.in_c)
        x = int8(rng, conv.in_h, conv.in_w, conv.in_c)
        ops.conv(x, weights, *sums_of(rng, conv.out_c, 9), conv)
        conv = image_shape(rng, n, kernel=4, dilated=False)
        print(conv)
        x, weights = int8(rng, conv.in_h, conv.in_w, conv.in_c), int8(rng, *conv.kernel, conv.in_c)
        ops.depthwise(x, weights, *sums_of(rng, conv.in_c, 9), conv)
        pool = Conv(conv.in_h, conv.in_w, conv.in_c, conv.in_c, conv.kernel, conv.stride, conv.pads)
        ops.pool(x, pool, average=bool(rng.integers(2)))
        ops.softmax(int8(rng, size(rng, n, 40), size(rng, n, 60)), 0.05)
        ops.reduce(int8(rng, size(rng, n, 40), size(rng, n, 60)), Reduce.MAX)
        ops.transpose(int8(rng, size(rng, n, 90), size(rng, n, 90)))
        ops.copy(int8(rng, size(rng, n, 4), size(rng, n, 30), size(rng, n, 90)))


def test_each_operation(ops):
    for operation in OPERATIONS:
        ops.calls.clear()
        operation(ops, np.random.default_rng(5))
        report = validate(ops.config, ops.calls, ops.windows)
        assert report.paths == 1
        assert report.commands["store"] > 0, operation


def test_consecutive_operators_with_random_shapes(ops, rng):
    random_shapes(ops, rng)
    names = {call.program.name for call in ops.calls}
    for operation in OPERATIONS[7:11]:
        operation(ops, rng)
    assert names | {call.program.name for call in ops.calls} == {program_name(name) for name in OPCODES}
    report = validate(ops.config, ops.calls, ops.windows)
    assert report.calls == len(ops.calls)


def test_every_program_of_the_library_is_validated():
    tested = {program_name(operation) for operation in OPCODES}
    assert {path.stem for path in LIBRARY.glob("*.s")} == tested
