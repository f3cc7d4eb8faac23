"""Command queue of a unit, which holds commands until their semaphores permit a start.

With `serial_commands`, the fields of commands arrive word by word and are stored in a `WordQueue`.
"""

from amaranth.hdl import Cat, Const, Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.isa.commands import UNIT_FIELDS
from hw.isa.enums import SEMAPHORES_PER_PAIR, SEQUENCER, Unit
from hw.layouts import (
    CLEAR_WORD,
    DERIVED,
    END_WORD,
    META_LAYOUT,
    WORD_LAYOUT,
    SemaphorePort,
    command_layout,
    command_stream,
)
from hw.lib.ram import Ram


class WordQueue(wiring.Component):
    """Store for the words of queued commands, which loads the words of the oldest command into the fields.

    While the unit executes a command, the words of the next command are loaded into the fields; the fields are stable
    from `loaded` to `take`.

    Latency: a field has its value four cycles after the word has arrived. Throughput: one word per cycle.

    Parameters
    ----------
    unit : Unit
        Unit that the commands are for.
    commands : int
        Capacity in complete commands; the words of one more, incomplete command always fit.

    Members
    -------
    valid, word : In
        Word of a command to store.
    take : In
        High if the unit starts the command in `body`; high only while `loaded` is high.
    flush : In
        Discard all queued commands.
    body : Out
        Fields and derived increments of the oldest command.
    loaded : Out
        High if `body` holds a complete command.
    """

    def __init__(self, unit: Unit, commands: int):
        self.unit = unit
        layout = command_layout(unit)
        most = len(UNIT_FIELDS[unit]) + len(DERIVED[unit]) + 2
        self.depth = 1 << ((commands + 1) * most - 1).bit_length()
        super().__init__(
            {
                "valid": In(1),
                "word": In(WORD_LAYOUT),
                "take": In(1),
                "flush": In(1),
                "body": Out(layout.size - META_LAYOUT.size),
                "loaded": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.words = ram = Ram(width=WORD_LAYOUT.size, depth=self.depth, exclusive=True)
        write, read = Signal(range(self.depth)), Signal(range(self.depth))
        fetch, got, move, held = Signal(), Signal(), Signal(), Signal()
        word = Signal(WORD_LAYOUT)
        use, ends = Signal(), Signal()
        m.d.comb += [
            ram.w_addr.eq(write),
            ram.w_data.eq(self.word),
            ram.w_en.eq(self.valid),
            ram.r0_addr.eq(read),
            ram.r0_en.eq(fetch),
            use.eq(held & ~self.loaded),
            ends.eq(use & (word.index == END_WORD)),
            move.eq(~held | use),
            fetch.eq((write != read) & (~got | move)),
        ]
        with m.If(move):
            m.d.sync += word.eq(ram.r0_data)
        with m.If(self.flush):
            m.d.sync += [write.eq(0), read.eq(0), got.eq(0), held.eq(0), self.loaded.eq(0)]
        with m.Else():
            m.d.sync += [
                write.eq(write + self.valid),
                read.eq(read + fetch),
                got.eq(fetch | (got & ~move)),
                held.eq(Mux(move, got, held)),
                self.loaded.eq((self.loaded & ~self.take) | ends),
            ]
        self._fields(m, use, word)
        return m

    def _fields(self, m: Module, use: Signal, word: Signal) -> None:
        """Add the registers of the fields."""
        widths = [(field.width, field.default) for field in UNIT_FIELDS[self.unit]]
        widths += [(width, 0) for width in DERIVED[self.unit].values()]
        parts, clear = [], Signal()
        m.d.comb += clear.eq(word.index == CLEAR_WORD)
        for number, (width, default) in enumerate(widths):
            part = Signal(width, name=f"field{number}", init=default & ((1 << width) - 1))
            with m.If(use & (clear | (word.index == number))):
                # A word that clears the fields carries 0, so only bits that become 1 need logic.
                m.d.sync += part.eq(word.data | Mux(clear, part.init, 0))
            parts.append(part)
        m.d.comb += self.body.eq(Cat(parts))


#: Maximum number of commands of one unit that have started and not retired.
STARTED_MAX = 16
#: Number of semaphores that a unit signals to units; those to the sequencer have higher indices.
_UNIT_SIGNALS = SEQUENCER * SEMAPHORES_PER_PAIR


class CommandQueue(wiring.Component):
    """Queue of commands that have not started, and of the semaphore signals that started commands have yet to send.

    The head is offered to the engine once every semaphore for which it waits holds a token and every semaphore that it
    signals has room. The transfer to the engine starts the command and takes the tokens. The signals of a command to
    units are sent when the engine reports that its results are visible, those to the sequencer, which may read
    statistics, when it reports that the command is done.

    Latency: a command can start two cycles after it has been queued; its signals are sent in the cycles of `visible`
    and `done`.
    Throughput: one command per cycle at each end.

    Parameters
    ----------
    unit : Unit
        Unit that the commands are for.
    config : MlaConfig
        Machine configuration; uses `queue_depth`.

    Members
    -------
    input : In
        Commands from the sequencer; with `serial_commands`, only their `meta`.
    word_valid, word : In
        With `serial_commands`, words with the fields of the next command.
    output : Out
        Commands for the engine; only `flush` withdraws an offer.
    visible : In
        One-cycle pulse when the results of the oldest started command for which there was no pulse are visible to
        commands that start in the next cycle.
    done : In
        One-cycle pulse when the oldest started command is complete, in the cycle of its pulse of `visible` or later.
    semaphores : Out
        Port between this queue and the semaphores.
    flush : In
        Discard all queued commands.
    queued : Out
        Number of commands that have not started.
    idle : Out
        High if no command is queued or started.
    stuck : Out
        High if no command is in progress, and the queue is empty or its head cannot start because of its semaphores.
    head_waits : Out
        Mask of the producers, indexed by Unit, whose tokens the head waits for.
    started, retired : Out
        One-cycle pulses when a command starts, and when a command retires.
    retired_tag, retired_macro : Out
        Tag and low bits of the macro-instruction number of the command that retires.

    Attributes
    ----------
    in_flight : Signal
        Number of commands that have started and not retired.
    """

    def __init__(self, unit: Unit, config: MlaConfig):
        self.unit, self.depth = unit, config.queue_depth
        self.in_flight = Signal(range(STARTED_MAX + 1))
        super().__init__(
            {
                "input": In(command_stream(unit)),
                "word_valid": In(1),
                "word": In(WORD_LAYOUT),
                "output": Out(command_stream(unit)),
                "visible": In(1),
                "done": In(1),
                "semaphores": Out(SemaphorePort()),
                "flush": In(1),
                "queued": Out(range(self.depth + 1)),
                "idle": Out(1),
                "stuck": Out(1),
                "head_waits": Out(len(Unit)),
                "started": Out(1),
                "retired": Out(1),
                "retired_tag": Out(META_LAYOUT["tag"].shape),
                "retired_macro": Out(META_LAYOUT["macro"].shape),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        push, start = Signal(), Signal()
        self._coming = Signal()
        m.d.comb += [
            push.eq(self.input.valid & self.input.ready),
            start.eq(self.output.valid & self.output.ready),
            self.started.eq(start),
            self.input.ready.eq(self.queued != self.depth),
        ]
        self._commands(m, push, start)
        self._started(m, start)
        self._head(m)
        return m

    def _commands(self, m: Module, push: Value, start: Value) -> None:
        """Add the ring of queued commands."""
        # The metadata determine the start; they have few bits, so a separate memory makes them valid early in a cycle.
        m.submodules.metas = metas = Ram(width=META_LAYOUT.size, depth=self.depth, comb=True)
        write = _pointer(m, "command_write", self.depth, push, self.flush)
        read = _pointer(m, "command_read", self.depth, start, self.flush)
        body = self._body(m, push, start, write, read)
        m.d.comb += [
            metas.w_addr.eq(write),
            metas.w_data.eq(self.input.payload.meta),
            metas.w_en.eq(push),
            metas.r0_addr.eq(read),
            self.output.payload.eq(Cat(body, self._meta(m, metas.r0_data))),
        ]
        with m.If(self.flush):
            m.d.sync += self.queued.eq(0)
        with m.Elif(push != start):
            m.d.sync += self.queued.eq(Mux(push, self.queued + 1, self.queued - 1))

    def _body(self, m: Module, push: Value, start: Value, write: Signal, read: Signal) -> Value:
        """Return the fields of the head, and drive the signal that is high while they have not yet arrived."""
        body = command_layout(self.unit).size - META_LAYOUT.size
        m.submodules.commands = ram = Ram(width=body, depth=self.depth, exclusive=True)
        # The memory is read one cycle ahead, so a command that becomes the head in the cycle of its push is valid one
        # cycle later.
        pushed = Signal()
        m.d.sync += pushed.eq(push)
        m.d.comb += [
            ram.w_addr.eq(write),
            ram.w_en.eq(push),
            ram.w_data.eq(self.input.payload.as_value()[:body]),
            ram.r0_addr.eq(Mux(start, _after(read, self.depth), read)),
            self._coming.eq(pushed & (self.queued == 1)),
        ]
        return ram.r0_data

    def connect_engine(self, m: Module, engine: stream.Interface, may_start: Value) -> None:
        """Connect the handshake of `output` with the engine, in the module of the chip.

        Parameters
        ----------
        m : Module
            Module of the chip.
        engine : Interface
            Command stream of the engine.
        may_start : Value
            High if the performance counters permit a start.
        """
        m.d.comb += [
            engine.valid.eq(self.output.valid & may_start),
            self.output.ready.eq(engine.ready & may_start),
        ]

    def engine_active(self, active: Value, begins: Value) -> Value:
        """Return a value that is high while a started command has not finished.

        Parameters
        ----------
        active : Value
            High if the engine is active.
        begins : Value
            High if the engine accepts a command in this cycle.
        """
        return active

    def _meta(self, m: Module, read: Value) -> Value:
        """Return the metadata of the head, which contain the semaphores that it waits for and those that it signals."""
        return read

    def _permission(self, m: Module, allowed: Signal) -> Signal:
        """Return a signal that permits the start of the head, derived from `allowed`, the condition in this cycle."""
        return allowed

    def _started(self, m: Module, start: Value) -> None:
        """Add the rings of signals and tags of started commands."""
        meta, write = self.output.payload.meta, _pointer(m, "owed_write", STARTED_MAX, start, self.flush)
        rings = (
            ("owed", meta.signal[:_UNIT_SIGNALS], self.visible),
            ("ending", Cat(meta.signal[_UNIT_SIGNALS:], meta.tag, meta.macro), self.done),
        )
        results = []
        for name, stored, leaves in rings:
            m.submodules[name] = ram = Ram(width=len(stored), depth=STARTED_MAX, comb=True)
            m.d.comb += [
                ram.w_addr.eq(write),
                ram.w_en.eq(start),
                ram.r0_addr.eq(_pointer(m, f"{name}_read", STARTED_MAX, leaves, self.flush)),
                ram.w_data.eq(stored),
            ]
            results.append(ram.r0_data)
        to_sequencer = Signal(SEMAPHORES_PER_PAIR)
        m.d.comb += [
            Cat(to_sequencer, self.retired_tag, self.retired_macro).eq(results[1]),
            self.retired.eq(self.done),
            self.semaphores.give.eq(Cat(Mux(self.visible, results[0], 0), Mux(self.done, to_sequencer, 0))),
        ]
        with m.If(self.flush):
            m.d.sync += self.in_flight.eq(0)
        with m.Elif(start != self.done):
            m.d.sync += self.in_flight.eq(Mux(start, self.in_flight + 1, self.in_flight - 1))

    def _head(self, m: Module) -> None:
        """Drive the offer of the head to the engine, and the tokens and reservations that its start takes."""
        meta, port = self.output.payload.meta, self.semaphores
        empty, none_started, present, allowed = Signal(), Signal(), Signal(), Signal()
        may = self._permission(m, allowed)
        lacks = Signal(len(meta.wait))
        m.d.comb += [
            empty.eq(self.queued == 0),
            none_started.eq(self.in_flight == 0),
            lacks.eq(meta.wait & ~port.available),
            present.eq(~empty & ~self._coming),
            allowed.eq(present & ~lacks.any() & ~(meta.signal & ~port.room).any()),
            self.output.valid.eq(may & (self.in_flight != STARTED_MAX)),
            port.take.eq(Mux(self.started, meta.wait, 0)),
            port.owe.eq(Mux(self.started, meta.signal, 0)),
            port.step.eq(self.started | self.visible | self.done),
            self.idle.eq(empty & none_started),
            self.stuck.eq(none_started & ~may & ~self._coming),
            self.head_waits.eq(
                Mux(~present, 0, Cat(lacks.word_select(u, SEMAPHORES_PER_PAIR).any() for u in Unit))
            ),
        ]


class SerialCommandQueue(CommandQueue):
    """`CommandQueue` whose commands arrive word by word; the head can start only when all its words have arrived.

    Latency and throughput are determined by `CommandQueue` and `WordQueue`. Parameters and members are the same as for
    `CommandQueue`.
    """

    def _body(self, m: Module, push: Value, start: Value, write: Signal, read: Signal) -> Value:
        m.submodules.words = words = WordQueue(self.unit, self.depth)
        m.d.comb += [
            words.valid.eq(self.word_valid),
            words.word.eq(self.word),
            words.take.eq(start),
            words.flush.eq(self.flush),
            self._coming.eq((self.queued != 0) & ~(words.loaded & self._settled(m, start))),
        ]
        return words.body

    def _settled(self, m: Module, start: Value) -> Value:
        """Return a value that is high if the result of `_meta` belongs to the head."""
        return Const(1)


class PipelinedCommandQueue(SerialCommandQueue):
    """`SerialCommandQueue` that reads the head in one cycle and decides in the next cycle whether it starts.

    Latency: a command can start two cycles later than in `SerialCommandQueue`, and the engine receives it one cycle
    after its start. Throughput: one command every three cycles. Parameters and members are the same as for
    `CommandQueue`.
    """

    def connect_engine(self, m: Module, engine: stream.Interface, may_start: Value) -> None:
        """Connect the handshake through registers; see `CommandQueue.connect_engine`.

        The registers are permitted because the conditions for a start remain true until the start, and the next start
        and its payload follow several cycles later.
        """
        m.d.sync += [self.output.ready.eq(engine.ready & may_start), engine.valid.eq(self.started)]

    def engine_active(self, active: Value, begins: Value) -> Value:
        """Return the value of `CommandQueue.engine_active`, which is also high while the engine accepts the command."""
        return active | begins

    def _meta(self, m: Module, read: Value) -> Value:
        head = Signal(META_LAYOUT.size)
        m.d.sync += head.eq(read)
        return head

    def _settled(self, m: Module, start: Value) -> Value:
        settled = Signal()
        m.d.sync += settled.eq((self.queued != 0) & ~start & ~self.flush)
        return settled

    def _permission(self, m: Module, allowed: Signal) -> Signal:
        """Return the signal of `CommandQueue._permission` from a register.

        No other unit takes the tokens or the room for signals that the head needs, so a start that is permitted remains
        permitted.
        """
        may = Signal()
        m.d.sync += may.eq(allowed & ~self.started & ~self.flush)
        return may


def command_queue(unit: Unit, config: MlaConfig) -> CommandQueue:
    """Return the variant of `CommandQueue` for a machine, selected by `serial_commands` and `pipelined`."""
    if config.serial_commands:
        return config.variant(SerialCommandQueue, PipelinedCommandQueue)(unit, config)
    return CommandQueue(unit, config)


def _pointer(m: Module, name: str, depth: int, step: Value, clear: Value) -> Signal:
    """Return a counter with the address of one end of a ring of `depth` words."""
    pointer = Signal(range(depth), name=name)
    with m.If(clear):
        m.d.sync += pointer.eq(0)
    with m.Elif(step):
        m.d.sync += pointer.eq(_after(pointer, depth))
    return pointer


def _after(pointer: Signal, depth: int) -> Value:
    return Mux(pointer == depth - 1, 0, pointer + 1)
