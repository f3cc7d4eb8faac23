"""Base class of block testbenches, with stream helpers, contract checks and waveforms in Amaranth's simulator."""

import random
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, TypeVar

from amaranth.hdl import Const, Elaboratable, Value, ValueLike
from amaranth.lib import stream, wiring
from amaranth.sim import Simulator, SimulatorContext

from tests.support import waveform_option

#: Process of a simulation in the form that Amaranth's simulator accepts.
Process = Callable[[Any], Awaitable[None]]

CLOCK_PERIOD = 1e-6  # in seconds; any value works

_Block = TypeVar("_Block")


_shared: dict[tuple[Any, ...], Any] = {}


def shared_block(make: Callable[..., _Block], *args: Any) -> _Block:
    """Return a block that all testbenches with the same parameters share.

    A simulator of a shared block is built once and reset before each run. Building takes about as long as the
    simulation of a few thousand cycles.

    Parameters
    ----------
    make : class or function
        Returns the block. No test may change the block.
    args : hashable
        Arguments of `make`.
    """
    key = (make, *args)
    if key not in _shared:
        _shared[key] = make(*args)
    return _shared[key]


class _SharedSimulator:
    """Simulator of a block, reset before each run, whose processes are replaced from run to run.

    Amaranth cannot remove processes. Each process therefore belongs to a slot, and each run fills all slots.

    Parameters
    ----------
    dut : Elaboratable
        The block.
    clocked : bool
        False for a combinational block.
    kinds : tuple of str
        Kind of each slot: `process`, `testbench` or `background`.
    """

    def __init__(self, dut: Elaboratable, clocked: bool, kinds: tuple[str, ...]):
        self.simulator = Simulator(dut)
        self._processes: list[Process] = []
        self._has_run = False
        if clocked:
            self.simulator.add_clock(CLOCK_PERIOD)
        for slot, kind in enumerate(kinds):
            process = self._process(slot)
            if kind == "process":
                self.simulator.add_process(process)
            else:
                self.simulator.add_testbench(process, background=kind == "background")

    def run(self, processes: list[Process]) -> None:
        """Run the processes, one for each slot, from reset until all processes of the kind `testbench` have ended."""
        self._processes = processes
        if self._has_run:
            self.simulator.reset()
        self._has_run = True
        with waveform_option.waveform(self.simulator):
            self.simulator.run()

    def _process(self, slot: int) -> Process:
        async def run(ctx: Any) -> None:
            await self._processes[slot](ctx)

        return run


@lru_cache(maxsize=8)
def _simulator(dut: Elaboratable, clocked: bool, kinds: tuple[str, ...]) -> _SharedSimulator:
    return _SharedSimulator(dut, clocked, kinds)


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
        slots: list[tuple[str, Process]] = [("process", environment)] if environment else []
        if self._clocked:
            slots.append(("background", self._fail_at_limit))
        slots += [("background", _contract_checker(port, void)) for port, void in self._contracts]
        slots += [("testbench", process) for process in processes]
        slots += [("background", process) for process in background]
        simulator = _simulator(self.dut, self._clocked, tuple(kind for kind, _ in slots))
        try:
            simulator.run([process for _, process in slots])
        except BaseException:
            _simulator.cache_clear()  # processes that were interrupted
            raise

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
