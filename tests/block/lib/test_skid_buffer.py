"""The skid buffer passes every payload in order, regardless of stalls."""

import random

import pytest
from amaranth.lib import data

from hw.lib.skid_buffer import SkidBuffer
from tests.support.testbench import Testbench


@pytest.mark.parametrize("stall", [0.0, 0.5])
def test_payloads_keep_their_order(stall: float) -> None:
    layout = data.StructLayout({"value": 16})
    seed = 1
    testbench, rng = Testbench(SkidBuffer(layout), seed=seed, stall=stall), random.Random(seed)
    testbench.check_contract(testbench.dut.o)
    values = [rng.getrandbits(16) for _ in range(200)]

    async def send(ctx) -> None:
        await testbench.put_all(ctx, testbench.dut.i, [{"value": value} for value in values])

    async def receive(ctx) -> None:
        assert [each.value for each in await testbench.drain(ctx, testbench.dut.o, len(values))] == values

    testbench.simulate(send, receive)
