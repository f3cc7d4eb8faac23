"""Counting semaphores that order the commands of the units."""

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
    """Vector of counters, stored as bit planes so that one wide operation updates all counters.

    Latency: a step is visible in the next cycle. Throughput: every counter may step in every cycle. A counter that is
    stepped in both directions does not change. A full counter must not be stepped up, and a counter of 0 must not be
    stepped down.

    Parameters
    ----------
    count, bits : int
        Number of counters, and width of each in bits.

    Members
    -------
    step : In
        High if any counter may step; needed because `up` and `down` are valid too late in the cycle to be clock
        enables.
    up, down : In
        Masks of the counters to step; 0 unless `step` is high.
    clear : In
        Set all counters to zero.
    nonzero, full : Out
        Masks of the counters that are not 0, and of the counters with the maximum value, all ones.

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
                # A carry propagates through ones, a borrow propagates through zeros.
                onward = Signal(self.up.shape(), name=f"moves{k + 1}")
                m.d.comb += onward.eq(moves & ~(plane ^ self.up))
                moves = onward
                nonzero, full = nonzero | plane, full & plane
        m.d.comb += [self.nonzero.eq(nonzero), self.full.eq(full)]
        return m


class Semaphores(wiring.Component):
    """Four semaphores for each pair of producer and consumer, and reservations for the signals of started commands.

    A second counter of each semaphore holds its count plus the number of reserved signals, so that a command starts
    only if its semaphores have room for its signals.

    Latency: taken tokens, reservations and signals are visible in the next cycle; with `pipelined`, one cycle later.
    Throughput: every port may be used in every cycle.

    Parameters
    ----------
    pipelined : int
        1 if the inputs are registered, else 0.

    Members
    -------
    units : In
        One port for each unit's command queue, indexed by Unit.
    seq_tokens : Out
        Mask of the sequencer's semaphores that hold a token, indexed by producer << 2 | index.
    seq_take : In
        Mask of the sequencer's semaphores from which a token is taken.
    clear : In
        Set all semaphores to 0 and cancel all reservations.

    Attributes
    ----------
    counts, reserved : PlaneCounters
        Number of tokens, and number of tokens plus reserved signals, indexed by producer, consumer and semaphore.
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
        """Select the bits of one consumer from a mask of all semaphores."""
        offsets = [producer * _PER_PRODUCER + consumer * SEMAPHORES_PER_PAIR for producer in Unit]
        return Cat(nonzero[offset : offset + SEMAPHORES_PER_PAIR] for offset in offsets)
