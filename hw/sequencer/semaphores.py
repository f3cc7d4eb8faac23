"""Semaphores: the counting tokens that order the units."""

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.isa.enums import SEMAPHORE_MAX, SEMAPHORES_PER_PAIR, SEQUENCER, Unit
from hw.layouts import SemaphorePort
from hw.lib.pipeline import pipeline_domain

_PER_PRODUCER = (SEQUENCER + 1) * SEMAPHORES_PER_PAIR
_COUNTERS = len(Unit) * _PER_PRODUCER
_BITS = SEMAPHORE_MAX.bit_length()


class PlaneCounters(wiring.Component):
    """Vector of counters, stored as bit planes so that one wide operation steps them all.

    Latency: a step is visible in the next cycle. Throughput: every counter may step each cycle. A counter
    stepped in both directions does not change; a full one must not be stepped up nor an empty one down.

    Parameters
    ----------
    count, bits : int
        Counters, and bits of each.

    Members
    -------
    step : In
        A counter may step: `up` and `down` are decoded too late to enable the clocks of all counters.
    up, down : In
        Counters to step; 0 without `step`.
    clear : In
        Sets all counters to zero.
    nonzero, full : Out
        State of each counter; full is all ones.

    Attributes
    ----------
    planes : list of Signal
        Bits of the counters, least significant first.
    """

    def __init__(self, *, count: int, bits: int):
        self.planes = [Signal(count, name=f"plane{k}") for k in range(bits)]
        super().__init__(
            {
                "step": In(1),
                "up": In(count),
                "down": In(count),
                "clear": In(1),
                "nonzero": Out(count),
                "full": Out(count),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        moves = Signal(self.up.shape(), name="moves0")
        m.d.comb += moves.eq(self.up ^ self.down)
        nonzero, full = 0, ~0
        with m.If(self.clear | self.step):
            for k, plane in enumerate(self.planes):
                m.d.sync += plane.eq(Mux(self.clear, 0, plane ^ moves))
                # A carry propagates through ones, a borrow through zeros.
                onward = Signal(self.up.shape(), name=f"moves{k + 1}")
                m.d.comb += onward.eq(moves & ~(plane ^ self.up))
                moves = onward
                nonzero, full = nonzero | plane, full & plane
        m.d.comb += [self.nonzero.eq(nonzero), self.full.eq(full)]
        return m


class Semaphores(wiring.Component):
    """Four semaphores for each (producer unit, consumer) pair, and reservations for signals of started commands.

    A second counter of each semaphore holds its count plus reserved signals, so that a command only starts when its
    signals will fit.

    Latency: takes, reservations and signals are visible in the next cycle, with `pipelined` a cycle later. Throughput:
    all ports every cycle.

    Parameters
    ----------
    pipelined : int
        1: inputs are registered first.

    Members
    -------
    units : In
        One port for each unit's command queue, indexed by Unit.
    seq_tokens : Out
        Semaphores of the sequencer that hold a token, producer << 2 | index.
    seq_take : In
        Takes a token of each semaphore in the mask.
    clear : In
        Set all semaphores to 0 and drop all reservations.

    Attributes
    ----------
    counts, reserved : PlaneCounters
        Tokens; tokens and reserved signals. Index: producer, then consumer, then semaphore.
    """

    units: In(SemaphorePort()).array(len(Unit))
    seq_tokens: Out(16)
    seq_take: In(16)
    clear: In(1)

    def __init__(self, *, pipelined: int = 0) -> None:
        super().__init__()
        self._pipelined = pipelined
        self.counts = PlaneCounters(count=_COUNTERS, bits=_BITS)
        self.reserved = PlaneCounters(count=_COUNTERS, bits=_BITS)

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.counts = counts = self.counts
        m.submodules.reserved = reserved = self.reserved
        taken, step = Signal(_COUNTERS), Signal()
        takes = [*(self.units[u].take for u in Unit), self.seq_take]
        domain = pipeline_domain(m, self._pipelined)
        domain += [
            taken.eq(
                Cat(take.word_select(producer, SEMAPHORES_PER_PAIR) for producer in Unit for take in takes)
            ),
            step.eq(Cat(self.units[u].step for u in Unit).any() | self.seq_take.any()),
            counts.up.eq(Cat(self.units[u].give for u in Unit)),
            counts.clear.eq(self.clear),
            reserved.up.eq(Cat(self.units[u].owe for u in Unit)),
            reserved.clear.eq(self.clear),
        ]
        m.d.comb += [
            counts.step.eq(step),
            reserved.step.eq(step),
            counts.down.eq(taken),
            reserved.down.eq(taken),
        ]
        for unit in Unit:
            m.d.comb += [
                self.units[unit].available.eq(self._tokens(counts.nonzero, unit)),
                self.units[unit].room.eq(~reserved.full.word_select(int(unit), _PER_PRODUCER)),
            ]
        m.d.comb += self.seq_tokens.eq(self._tokens(counts.nonzero, SEQUENCER))
        return m

    @staticmethod
    def _tokens(nonzero: Signal, consumer: int) -> Cat:
        """Bits of one consumer in a mask of all semaphores."""
        offsets = [producer * _PER_PRODUCER + consumer * SEMAPHORES_PER_PAIR for producer in Unit]
        return Cat(nonzero[offset : offset + SEMAPHORES_PER_PAIR] for offset in offsets)
