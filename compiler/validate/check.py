"""The proof: every way through a stream of macro-instructions, followed to its end."""

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.validate.errors import Place, ValidationError
from compiler.validate.report import Figures, Report
from compiler.validate.sequencer import Sequencer
from compiler.validate.timeline import Timeline
from compiler.validate.way import Code, Way, code_of
from compiler.validate.written import Written
from cosim.golden.checks import Window
from cosim.golden.machine import MAX_IN_FLIGHT
from hw.config import MlaConfig
from hw.errors import InputError, shown
from hw.isa.micro import MAX_OPERANDS, MicroOp
from hw.isa.program import Program

#: Instructions that a call may take unless the caller says otherwise.
LIMIT = 1 << 22
#: Ways through the programs that are followed, and instructions on all of them but the first.
MAX_WAYS = 4096
MAX_WAY_INSTRUCTIONS = 1 << 22
_MEET = "ways that end in the same state meet again at a fence of all units"


@dataclass(frozen=True)
class Call:
    """A macro-instruction.

    Parameters
    ----------
    program : Program
        The micro-program it runs.
    operands : tuple of int
        32-bit words, with or without sign.
    tag : int
        Tag of its counters.
    """

    program: Program
    operands: tuple[int, ...] = ()
    tag: int = 0


def validate(
    config: MlaConfig,
    calls: Sequence[Call],
    windows: Sequence[Window],
    *,
    pinned: Sequence[Program] = (),
    limit: int = LIMIT,
    require_written: bool = False,
) -> Report:
    """Prove that a stream of macro-instructions can do no harm, whatever the data and the timing.

    That is: no instruction traps, everything ends, all accesses stay inside the memories and the windows, no two
    accesses that conflict are without order (so results do not depend on timing), and all semaphores end at zero.
    The stream begins on a machine whose semaphores are all zero and where no command is on its way.

    Parameters
    ----------
    config : MlaConfig
        The machine.
    calls : sequence of Call
        Macro-instructions, in the order of the ring. None may need a later one in order to finish.
    windows : sequence of (first byte, last byte, permissions)
        DRAM that programs may touch; bit 0 of the permissions is read, bit 1 write.
    pinned : sequence of Program
        Code that programs may call, by segment: the first is in segment 0, and so on.
    limit : int
        Instructions that a call may take.
    require_written : bool
        Also refuse to read scratchpad, accumulator, slots or tables where nothing has been written since the stream
        began.

    Raises
    ------
    ValidationError
        The stream is not safe, or cannot be shown to be; it names the instruction.
    InputError
        The arguments make no sense.
    """
    checked = _Arguments(config, calls, windows, pinned, limit)
    return _Proof(checked, require_written).run()


class _Arguments:
    """What is to be validated, checked and decoded."""

    def __init__(
        self,
        config: MlaConfig,
        calls: Sequence[Call],
        windows: Sequence[Window],
        pinned: Sequence[Program],
        limit: int,
    ):
        if limit < 1:
            raise InputError(f"limit must be at least 1, not {shown(limit)}")
        if len(windows) > config.windows:
            raise InputError(f"there are {config.windows} windows, not {len(windows)}")
        if len(pinned) > config.segments - bool(calls):
            raise InputError(
                f"there are {config.segments} segments, too few for {len(pinned)} pinned programs"
            )
        self.config, self.calls, self.limit = config, calls, limit
        self.windows = list(windows)
        taken = sum(len(program.words) for program in pinned)
        codes: dict[int, Code] = {}
        for program in pinned:
            _check_words(program, Place(0, program.name, -1))
        self.pinned = [code_of(program) for program in pinned]
        self.sequencers = [self._sequencer(index, call, taken, codes) for index, call in enumerate(calls)]

    def _sequencer(self, index: int, call: Call, taken: int, codes: dict[int, Code]) -> Sequencer:
        program, place = call.program, Place(index, call.program.name, -1)
        most = self.config.wis_words - taken
        if not 1 <= len(program.words) <= most:
            reason = f"the program must have 1..{most} instructions, not {len(program.words)}"
            raise ValidationError("size", place, reason)
        if len(call.operands) > MAX_OPERANDS:
            reason = f"a call has at most {MAX_OPERANDS} operands, not {len(call.operands)}"
            raise ValidationError("operand", place, reason)
        for number, value in enumerate(call.operands):
            if not -(1 << 31) <= value < 1 << 32:
                reason = f"operand {number} must fit 32 bits, not {shown(value)}"
                raise ValidationError("operand", place, reason)
        if not 0 <= call.tag < self.config.tags:
            reason = f"the tag must be in 0..{self.config.tags - 1}, not {shown(call.tag)}"
            raise ValidationError("operand", place, reason)
        if id(program) not in codes:
            _check_words(program, place)
            codes[id(program)] = code_of(program)
        code = codes[id(program)]
        operands = tuple(int(value) & 0xFFFFFFFF for value in call.operands)
        return Sequencer(self.config, self.windows, code, self.pinned, operands, self.limit)


def _check_words(program: Program, place: Place) -> None:
    for number, word in enumerate(program.words):
        if not 0 <= word < 1 << 64:
            reason = f"a word must be in 0..2**64-1, not {shown(word)}"
            raise ValidationError("illegal", place._replace(instruction=number), reason)


class _Proof:
    """Follows every way. Where two ways meet in the same state, the second ends there."""

    def __init__(self, arguments: _Arguments, require_written: bool):
        self.arguments = arguments
        config = arguments.config
        self.figures = Figures()
        self.ways = 1
        self._open = [Way(Timeline(config.queue_depth), Written(config) if require_written else None)]
        self._seen: dict[tuple, list[tuple[int, ...]]] = {}

    def run(self) -> Report:
        """Follow all ways; ValidationError from the first that does harm."""
        spent = 0
        while self._open:
            way = self._open.pop()
            before = way.figures.instructions + way.steps
            self._follow(way)
            self.figures.join(way.figures)
            spent += way.figures.instructions - before if before else 0
            if spent > MAX_WAY_INSTRUCTIONS and self._open:
                way = self._open.pop()
                reason = (
                    f"the ways that the data may choose take more than {MAX_WAY_INSTRUCTIONS} instructions"
                )
                raise self.arguments.sequencers[way.call].refuse(way, "statistics", f"{reason}; {_MEET}")
        return self.figures.report(len(self.arguments.calls), self.ways)

    def _follow(self, way: Way) -> None:
        """Follow a way to the end of the stream, or to where another one has been."""
        if way.call < 0 and not self._next(way):
            return
        while True:
            sequencer = self.arguments.sequencers[way.call]
            op = sequencer.run(way)
            if op is None:
                self._fork(way, sequencer)
                continue
            if op is MicroOp.HALT:
                way.figures.instructions += way.steps
                if not self._next(way):
                    way.timeline.end()
                    return
            if self.ways > 1 and way.timeline.quiet and self._been_here(way):
                way.figures.instructions += way.steps
                return

    def _next(self, way: Way) -> bool:
        """Go on with the next call; whether there is one."""
        timeline = way.timeline
        if way.call >= 0:
            issued = timeline.issued
            way.ends[way.call] = (issued[0], issued[1], issued[2], issued[3])
        if way.call + 1 >= len(self.arguments.calls):
            return False
        way.begin(self.arguments.calls[way.call + 1].tag)
        done = way.ends.pop(way.call - MAX_IN_FLIGHT, None)
        if done:
            timeline.wait_for(done)
        return True

    def _fork(self, way: Way, sequencer: Sequencer) -> None:
        """Go both ways at a branch that the data decide."""
        self.ways += 1
        if self.ways > MAX_WAYS:
            reason = f"the data may choose among more than {MAX_WAYS} ways to here; {_MEET}"
            raise sequencer.refuse(way, "statistics", reason)
        other = way.fork()
        sequencer.branch(other, True)
        other.steps += 1
        self._open.append(other)
        sequencer.branch(way, False)
        way.steps += 1

    def _been_here(self, way: Way) -> bool:
        """Whether a way that had no less time left has been in this state."""
        state, spent = way.settle(), (way.steps, *way.work)
        before = self._seen.setdefault(state, [])
        if any(all(a >= b for a, b in zip(other, spent, strict=True)) for other in before):
            return True
        before.append(spent)
        return False
