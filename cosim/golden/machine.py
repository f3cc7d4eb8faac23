"""State machine of the golden model, which executes one action of the sequencer or of a unit at a time."""

import random
from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np

from cosim.golden import interpreter
from cosim.golden.command import Command
from cosim.golden.command_queues import CommandQueues
from cosim.golden.counters import TaggedCounters
from cosim.golden.dispatch import DispatchTable, check_header, read_slot
from cosim.golden.dma import Events
from cosim.golden.instruction_store import InstructionStore
from cosim.golden.memory import Memories
from cosim.golden.program import InFlightMacro, ProgramState
from cosim.golden.ring import CommandRing
from cosim.golden.traps import NO_SEGMENT, TrapRaisedError, TrapRecord
from cosim.golden.unit_dispatch import UnitExecutor
from cosim.semantics.command_checks import DramWindow, check_command
from cosim.semantics.limits import MAX_IN_FLIGHT
from hw.config import MlaConfig
from hw.isa.enums import SegmentState, Trap, Unit
from hw.isa.macro_instruction import SLOT_BYTES
from hw.isa.micro_instruction import Statistic

_UNITS = tuple(Unit)
IRQ_COMPLETION, IRQ_TRAP, IRQ_CHECK, IRQ_LOADER = 1, 2, 4, 8


class Machine:
    """State machine with all state that a program or the host can observe.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.
    dram : numpy.ndarray
        DRAM image as uint8, which is modified in place.
    order_seed : int or None
        Seed of a random order of actions; None to execute actions of the sequencer before those of the units. Programs
        without races give the same results in every order.
    """

    def __init__(self, config: MlaConfig, dram: np.ndarray, order_seed: int | None = None):
        self.config = config
        self.memories = Memories(config, dram)
        self.units = UnitExecutor(self.memories)
        self.queues = CommandQueues(config.queue_depth)
        self.store = InstructionStore(config, lambda: self.running.segments if self.running else set())
        self.dispatch = DispatchTable(config)
        self.counting = TaggedCounters(config.tags)
        self.trap = TrapRecord()
        self.windows: list[DramWindow] = [(0, 0, 0)] * config.windows
        self.running: ProgramState | None = None
        self.flight: deque[InFlightMacro] = deque()
        self.trapped = False
        self.enabled = False
        self.gated = False
        self.irq = 0
        self.ring = CommandRing(dram)
        self.step_limit = self.watchdog = 0
        self.cycle = self.progress = self.current_tag = 0
        self._order = None if order_seed is None else random.Random(order_seed)

    # Methods of SequencerContext

    def fetch(self, segment: int, pc: int) -> int | None:
        """Return the word at index `pc` of a segment; None if the segment is shorter."""
        entry = self.store.segments[segment]
        return self.store.words[entry.base + pc] if pc < entry.length else None

    def statistic(self, which: Statistic) -> int:
        """Return the value of a statistic of the machine, which does not depend on the state of the program."""
        return self.cycle if which == Statistic.CYCLE else self.units.statistics[which]

    def segment_ready(self, segment: int) -> bool | None:
        """Return True if a program may call a segment, False if not, and None if no such segment exists."""
        if segment >= len(self.store.segments):
            return None
        entry = self.store.segments[segment]
        return entry.state == SegmentState.VALID and entry.pinned

    def queue_full(self, unit: int) -> bool:
        """Return True if a unit's queue is full."""
        return self.queues.full(unit)

    def check(self, command: Command) -> None:
        """Raise TrapRaisedError if a command is illegal."""
        found = check_command(self.config, self.windows, command.unit, command.config)
        if found:
            raise TrapRaisedError(*found)

    def enqueue(self, command: Command) -> None:
        """Append a command to its unit's queue."""
        self.queues.commands[command.unit].append(command)

    def take_semaphore(self, semaphore: int) -> bool:
        """Take a token from a semaphore of the sequencer; return False if none is available."""
        return self.queues.try_take(semaphore)

    def drained(self, mask: int) -> bool:
        """Return True if no unit in `mask` has queued commands."""
        return not any(self.queues.commands[unit] for unit in Unit if mask >> unit & 1)

    # Actions

    @property
    def idle(self) -> bool:
        """True if no macro-instruction is in flight or waiting in the ring."""
        return self.ring.empty and not self.flight

    def step(self) -> bool:
        """Execute one action of the sequencer or of a unit; return False if none is possible until the host acts."""
        self.cycle += 1
        if self.trapped:
            return False
        if self.watchdog and self.flight and self.cycle - self.progress >= self.watchdog:
            self._stop_imprecisely(Trap.WATCHDOG, 0)
            return True
        if self._order:
            actions: list[Callable[[], bool]] = [
                self._sequence,
                *(partial(self._step_unit, u) for u in _UNITS),
            ]
            self._order.shuffle(actions)
            acted = any(action() for action in actions)
        else:
            acted = self._sequence() or self._step_any_unit()
        if acted:
            return True
        if self.flight:
            self._deadlock()
            return True
        return False

    def _step_any_unit(self) -> bool:
        for unit in _UNITS:  # noqa: SIM110  # a generator takes longer than most of the actions
            if self._step_unit(unit):
                return True
        return False

    def _step_unit(self, unit: int) -> bool:
        if not self.queues.startable(unit):
            return False
        command = self.queues.start(unit)
        bad = self.units.faulty(command)
        if bad is not None:
            self._stop_imprecisely(Trap.BUS_READ if unit == Unit.LOAD else Trap.BUS_WRITE, bad)
            return True
        self.counting.add(command.tag, self.units.run(command))
        self.queues.retire(command)
        for macro in self.flight:
            if macro.number == command.macro:
                macro.outstanding -= 1
        self._complete()
        return True

    def _sequence(self) -> bool:
        if self.running is None:
            return self._dispatch()
        running, tag = self.running, self.running.tag
        try:
            counter = interpreter.step(self, running, self.step_limit)
        except TrapRaisedError as trap:
            self._stop(
                trap.cause, running.pc, running.segment, running.tag, running.macro.number, trap.address
            )
            return True
        if counter is None:
            return False
        running.macro.micros += 1
        self.current_tag = running.tag
        self.counting.add(tag, {counter: 1})
        if running.macro.halted:
            self.running = None
            self._complete()
        return True

    def _dispatch(self) -> bool:
        if not self.enabled or self.ring.empty or len(self.flight) >= MAX_IN_FLIGHT:
            return False
        macro = self.ring.pop(self.cycle)
        self.flight.append(macro)
        self.progress = self.cycle
        try:
            self._start(macro)
        except TrapRaisedError as trap:
            segment = NO_SEGMENT if trap.segment is None else trap.segment
            self._stop(trap.cause, 0, segment, macro.tag, macro.number, trap.address)
        return True

    def _start(self, macro: InFlightMacro) -> None:
        if self.units.bus_error(macro.slot, macro.slot + SLOT_BYTES - 1, False):
            raise TrapRaisedError(Trap.BUS_READ, macro.slot, NO_SEGMENT)
        header, operands = read_slot(self.memories.dram, macro.slot)
        macro.tag, macro.irq = header["tag"] & 63, bool(header["irq"])
        check_header(header)
        segment, candidate = self.dispatch.choose(self, header["opcode"], operands, macro.tag)
        entries = self.store.segments
        if segment >= len(entries) or entries[segment].state != SegmentState.VALID:
            raise TrapRaisedError(Trap.SEGMENT_INVALID, segment, segment)
        macro.program, macro.candidate = segment, candidate
        self.running = ProgramState(macro, operands, segment, macro.tag)
        self.counting.add(macro.tag, {"macros": 1, "dispatch_other" if candidate else "dispatch_first": 1})

    # Completions and traps

    def _complete(self) -> None:
        while self.flight and self.flight[0].finished:
            self._record(self.flight.popleft(), Trap.NONE)

    def _record(self, macro: InFlightMacro, cause: Trap) -> None:
        self.ring.complete(macro, cause, self.cycle)
        self.progress = self.cycle
        if macro.irq:
            self.irq |= IRQ_COMPLETION

    def _deadlock(self) -> None:
        running, oldest = self.running, self.flight[0]
        if running:
            self._stop(Trap.DEADLOCK, running.pc, running.segment, running.tag, running.macro.number, 0)
        else:
            self._stop(Trap.DEADLOCK, 0, oldest.program, oldest.tag, oldest.number, 0)

    def _stop(self, cause: Trap, pc: int, segment: int, tag: int, macro: int, address: int) -> None:
        """Take an exact trap: execute all commands that can start, clear the queues and record the trap."""
        self.running = None
        self.trapped = True
        count = self.trap.count
        while self._step_any_unit():
            pass
        if self.trap.count == count:  # otherwise a bus error has replaced this trap
            self._clear(cause, pc, segment, tag, macro, address)

    def _stop_imprecisely(self, cause: Trap, address: int) -> None:
        running = self.running
        self.running = None
        self.trapped = True
        pc, segment, tag = (running.pc, running.segment, running.tag) if running else (0, NO_SEGMENT, 0)
        self._clear(cause, pc, segment, tag, self.flight[0].number, address)

    def _clear(self, cause: Trap, pc: int, segment: int, tag: int, macro: int, address: int) -> None:
        self.queues.clear()
        while self.flight:
            entry = self.flight.popleft()
            self._record(entry, Trap.NONE if entry.finished else cause)
        self.trap.fill(cause, pc & 0x3FFF, segment, tag, macro, address)
        self.counting.add(tag, {"traps": 1})
        self.irq |= IRQ_TRAP

    def resume(self) -> None:
        """Continue after a trap."""
        self.trapped = False
        self.progress = self.cycle

    def count_host(self, events: Events) -> None:
        """Count events caused by the host, under the sequencer's current tag."""
        self.counting.add(self.current_tag, events)
