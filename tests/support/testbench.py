"""Base class of block testbenches, with stream helpers, contract checks and waveforms in Amaranth's simulator."""

import random
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

from amaranth.hdl import Const, Elaboratable, Value, ValueLike
from amaranth.lib import stream, wiring
from amaranth.sim import Simulator, SimulatorContext

from tests.support import waveform_option

#: Process of a simulation in the form that Amaranth's simulator accepts.
Process = Callable[[Any], Awaitable[None]]

CLOCK_PERIOD = 1e-6  # in seconds; any value works


class Testbench:
    """Testbench that runs a block in Amaranth's simulator.

    With `--waveforms DIR` a failing test leaves the waveform of each of its simulations in DIR.

    Parameters
    ----------
    dut : Elaboratable
        The block under test.
    seed : int
        Seed of the random stalls of the stream helpers; printed if there are stalls.
    stall : float
        Probability that `put` or `get` waits in a cycle before it offers or accepts a payload.
    patience : int
        Cycles that `put` and `get` wait for the other side before they report a stuck stream.
    limit : int
        Number of cycles after which a simulation fails if it has not ended.
    clocked : bool
        False for a combinational block.
    """

    __test__ = False  # not a test class for pytest, despite its name

    def __init__(
        self,
        dut: Elaboratable,
        *,
        seed: int = 0,
        stall: float = 0.0,
        patience: int = 1000,
        limit: int = 1_000_000,
        clocked: bool = True,
    ):
        self.dut: Any = dut
        self._stall, self._patience, self._limit, self._clocked = stall, patience, limit, clocked
        self._stalls = random.Random(seed)
        self._contracts: list[tuple[Any, ValueLike]] = []
        if stall:
            print(f"seed {seed}")

    def check_contract(self, *streams: Any, void: ValueLike = Const(0)) -> None:  # noqa: B008  # a constant
        """Check the contract of `lib.stream` in every cycle of `simulate`.

        An offered payload must stay valid and unchanged until it is accepted.

        Parameters
        ----------
        streams : stream interfaces
            Streams whose source is checked.
        void : 1-bit value
            Signal that permits the source to withdraw its payload while it is high, as in a flush.
        """
        self._contracts += [(each, void) for each in streams]

    def simulate(
        self, *processes: Process, background: Iterable[Process] = (), environment: Process | None = None
    ) -> None:
        """Run the block from reset until all processes have ended.

        Parameters
        ----------
        processes : async functions
            Testbenches, each called with the simulator's context.
        background : async functions
            Testbenches that need not end for the simulation to end.
        environment : async function, optional
            Process that acts like synchronous logic: it samples values before the clock edge.

        Raises
        ------
        AssertionError
            A stream violates its contract, or the processes have not ended after `limit` cycles.
        """
        simulator = Simulator(self.dut)
        if self._clocked:
            simulator.add_clock(CLOCK_PERIOD)
            simulator.add_testbench(self._fail_at_limit, background=True)
        for port, void in self._contracts:
            simulator.add_testbench(_contract_checker(port, void), background=True)
        if environment:
            simulator.add_process(environment)
        for process in processes:
            simulator.add_testbench(process)
        for process in background:
            simulator.add_testbench(process, background=True)
        with waveform_option.waveform(simulator):
            simulator.run()

    # Streams
    async def put(self, ctx: SimulatorContext, port: Any, payload: Any) -> None:
        """Send one payload.

        Parameters
        ----------
        ctx : SimulatorContext
            Context of the process that calls.
        port : stream interface
            Input stream of the block.
        payload : constant
            Value of the payload's shape.

        Raises
        ------
        AssertionError
            The block does not become ready.
        """
        await self._random_stall(ctx)
        ctx.set(port.payload, payload)
        ctx.set(port.valid, 1)
        for _ in range(self._patience):
            _, _, ready = await ctx.tick().sample(port.ready)
            if ready:
                ctx.set(port.valid, 0)
                return
        raise AssertionError(f"stream {stream_name(port)} is stuck: not ready for {self._patience} cycles")

    async def get(self, ctx: SimulatorContext, port: Any) -> Any:
        """Receive one payload.

        Parameters
        ----------
        ctx : SimulatorContext
            Context of the process that calls.
        port : stream interface
            Output stream of the block.

        Raises
        ------
        AssertionError
            The block offers no payload.
        """
        await self._random_stall(ctx)
        ctx.set(port.ready, 1)
        for _ in range(self._patience):
            _, _, valid, payload = await ctx.tick().sample(port.valid, port.payload)
            if valid:
                ctx.set(port.ready, 0)
                return payload
        raise AssertionError(f"stream {stream_name(port)} is stuck: not valid for {self._patience} cycles")

    async def put_all(self, ctx: SimulatorContext, port: Any, payloads: Iterable[Any]) -> None:
        """Send payloads one after another; the parameters are like those of `put`."""
        for payload in payloads:
            await self.put(ctx, port, payload)

    async def drain(self, ctx: SimulatorContext, port: Any, count: int) -> list[Any]:
        """Receive `count` payloads; the other parameters are like those of `get`."""
        return [await self.get(ctx, port) for _ in range(count)]

    async def _random_stall(self, ctx: SimulatorContext) -> None:
        while self._stalls.random() < self._stall:
            await ctx.tick()

    async def _fail_at_limit(self, ctx: SimulatorContext) -> None:
        await ctx.delay(self._limit * CLOCK_PERIOD)
        waiting = [
            f"{name}: valid {ctx.get(port.valid)}, ready {ctx.get(port.ready)}"
            for name, port in streams_of(self.dut)
            if ctx.get(port.valid) != ctx.get(port.ready)
        ]
        raise AssertionError(
            f"no end after {self._limit} cycles; waiting streams: {'; '.join(waiting) or 'none'}"
        )


def simulate(dut: Elaboratable, *processes: Process, clocked: bool = True) -> None:
    """Run a block that needs no special testbench; the parameters are like those of `Testbench`."""
    Testbench(dut, clocked=clocked).simulate(*processes)


def stream_name(port: Any) -> str:
    """Return the name of a stream interface as it appears in signal names."""
    return port.valid.name.removesuffix("valid").rstrip("_") or "of the block"


def streams_of(dut: Any) -> Iterator[tuple[str, Any]]:
    """Yield the named stream interfaces among the members of a component; nothing for other elaboratables."""
    if isinstance(dut, wiring.Component):
        for name, member in dut.signature.members.items():
            if (
                member.is_signature
                and not member.dimensions
                and isinstance(member.signature, stream.Signature)
            ):
                yield name, getattr(dut, name)


def _contract_checker(port: Any, void: ValueLike) -> Process:
    name = stream_name(port)

    async def check(ctx: SimulatorContext) -> None:
        offered, cycle = None, 0
        watched = port.valid, port.ready, Value.cast(port.payload), void
        async for _, reset, valid, ready, payload, excused in ctx.tick().sample(*watched):
            if offered is not None and not reset:
                assert valid, f"stream {name}: valid dropped before the transfer, in cycle {cycle}"
                assert payload == offered, (
                    f"stream {name}: payload changed before the transfer, in cycle {cycle}"
                )
            offered = payload if valid and not ready and not excused else None
            cycle += 1

    return check
