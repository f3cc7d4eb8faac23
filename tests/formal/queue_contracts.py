"""Contracts of command queues and semaphores as circuits with assertions."""

from functools import partial

from amaranth.hdl import Assert, Assume, Cat, Module, Signal, signed

from hw.config import MlaConfig
from hw.isa.enums import SEMAPHORE_MAX, SEMAPHORES_PER_PAIR, SEQUENCER, Unit
from hw.sequencer.semaphores import Semaphores
from hw.units.command_queue import STARTED_MAX, CommandQueue
from tests.formal.axi_contracts import Contract

CONFIG = MlaConfig(n=4, queue_depth=3)
_UNIT_SIGNALS = SEQUENCER * SEMAPHORES_PER_PAIR
_PER_PRODUCER = (SEQUENCER + 1) * SEMAPHORES_PER_PAIR


class QueueContract(Contract):
    """Contract of a queue: it counts queued and started commands, and starts commands only if semaphores permit."""

    def __init__(self) -> None:
        super().__init__(CommandQueue(Unit.STORE, CONFIG))

    def claim(self, m: Module, block: CommandQueue) -> None:
        push, start, done = block.input.valid & block.input.ready, block.started, block.done
        inside, running = Signal(8), Signal(8)
        with m.If(block.flush):
            m.d.sync += [inside.eq(0), running.eq(0)]
        with m.Else():
            m.d.sync += [inside.eq(inside + push - start), running.eq(running + start - done)]
        meta, port = block.output.payload.meta, block.semaphores
        m.d.comb += [
            Assume(~done | (running != 0)),
            Assert(inside == block.queued),
            Assert(running == block.in_flight),
            Assert(inside <= CONFIG.queue_depth),
            Assert(running <= STARTED_MAX),
            Assert(block.idle == ((inside == 0) & (running == 0))),
            Assert(~block.output.valid | ((inside != 0) & (running != STARTED_MAX))),
            Assert(
                ~block.output.valid
                | (((meta.wait & ~port.available) == 0) & ((meta.signal & ~port.room) == 0))
            ),
            Assert(start == (block.output.valid & block.output.ready)),
            Assert(port.take == (meta.wait & start.replicate(16))),
            Assert(port.owe == (meta.signal & start.replicate(20))),
            Assert(block.visible | (port.give[:_UNIT_SIGNALS] == 0)),
            Assert(done | (port.give[_UNIT_SIGNALS:] == 0)),
            Assert(port.step | ~Cat(port.take, port.owe, port.give).any()),
            Assert(~block.stuck | (~block.output.valid & (running == 0))),
        ]


class QueueOrderContract(Contract):
    """Contract of the order of commands: they leave a queue unchanged and in order, and signal in the same order."""

    def __init__(self) -> None:
        super().__init__(CommandQueue(Unit.STORE, CONFIG))

    def claim(self, m: Module, block: CommandQueue) -> None:
        pick, held, later = Signal(3), Signal(3), Signal()
        m.d.comb += pick.eq(
            block.input.payload.meta.tag
        )  # the tag is unconstrained, so it represents every position in the order
        m.d.sync += later.eq(1)
        with m.If(~later):
            m.d.sync += held.eq(pick)
        pushes, starts, shows, dones = Signal(8), Signal(8), Signal(8), Signal(8)
        command = Signal.like(block.input.payload.as_value())
        signal = Signal(20)
        push = block.input.valid & block.input.ready
        m.d.sync += [
            pushes.eq(pushes + push),
            starts.eq(starts + block.started),
            shows.eq(shows + block.visible),
            dones.eq(dones + block.done),
        ]
        m.d.comb += [
            Assume(~block.flush),
            Assume(~block.visible | (shows < starts)),
            Assume(~block.done | (dones < shows + block.visible)),
            Assume(later | ~block.input.valid),
        ]
        with m.If(push & (pushes == held)):
            m.d.sync += [
                command.eq(block.input.payload.as_value()),
                signal.eq(block.input.payload.meta.signal),
            ]
        with m.If(block.started & (starts == held)):
            m.d.comb += Assert(block.output.payload.as_value() == command)
        give = block.semaphores.give
        with m.If(block.visible & (shows == held)):
            m.d.comb += Assert(give[:_UNIT_SIGNALS] == signal[:_UNIT_SIGNALS])
        with m.If(block.done & (dones == held)):
            m.d.comb += Assert(give[_UNIT_SIGNALS:] == signal[_UNIT_SIGNALS:])


class SemaphoreContract(Contract):
    """Contract of a semaphore: it holds 0 to 63 tokens and neither loses nor creates any if its users obey its outputs.

    The same wide operations update all semaphores, so a few semaphores represent all of them.

    Parameters
    ----------
    producer, consumer, index : int
        Units and index that identify the semaphore.
    """

    def __init__(self, producer: int, consumer: int, index: int):
        self._place = producer, consumer, index
        super().__init__(Semaphores())

    def claim(self, m: Module, block: Semaphores) -> None:
        producer, consumer, index = self._place
        number = producer * _PER_PRODUCER + consumer * SEMAPHORES_PER_PAIR + index
        later, cleared = Signal(), Signal()
        m.d.sync += [later.eq(1), cleared.eq(block.clear)]
        out, into = consumer * SEMAPHORES_PER_PAIR + index, producer * SEMAPHORES_PER_PAIR + index
        user = block.units[producer]
        owe, give, room = user.owe[out], user.give[out], user.room[out]
        if consumer == SEQUENCER:
            take, available = block.seq_take[into], block.seq_tokens[into]
        else:
            take, available = block.units[consumer].take[into], block.units[consumer].available[into]
        count, reserved = (
            Cat(plane[number] for plane in counters.planes) for counters in (block.counts, block.reserved)
        )
        m.d.comb += [
            Assume(~take | available),
            Assume(~owe | room),
            Assume(~give | (count < reserved)),
            *(Assume(unit.step | ~Cat(unit.take, unit.owe, unit.give).any()) for unit in block.units),
            Assert(count <= reserved),
            Assert(available == (count != 0)),
            Assert(room == (reserved != SEMAPHORE_MAX)),
        ]
        expected, promised = Signal(signed(9)), Signal(signed(9))
        m.d.sync += [expected.eq(count + give - take), promised.eq(reserved + owe - take)]
        with m.If(later & cleared):
            m.d.comb += Assert((count == 0) & (reserved == 0))
        with m.Elif(later):
            m.d.comb += Assert((count == expected) & (reserved == promised))


CONTRACTS = {
    "queue": QueueContract,
    "order": QueueOrderContract,
    "semaphore_0_1_1": partial(SemaphoreContract, 0, 1, 1),
    "semaphore_2_4_3": partial(SemaphoreContract, 2, 4, 3),
    "semaphore_3_3_0": partial(SemaphoreContract, 3, 3, 0),
}
