"""The proof: every way through a stream of macro-instructions, followed to its end."""

from collections.abc import Sequence

from compiler.validate.execution_path import ExecutionPath
from compiler.validate.happens_before import HappensBefore
from compiler.validate.initialized import InitializedMemory
from compiler.validate.macro_call import CallStream, MacroCall
from compiler.validate.proof_memo import proved
from compiler.validate.report import ProofFigures, ProofReport
from compiler.validate.sequencer import SymbolicSequencer
from cosim.semantics.command_checks import DramWindow
from hw.config import MlaConfig
from hw.isa.micro_instruction import MicroOp
from hw.isa.program import Program

#: Instructions that a call may take unless the caller says otherwise.
LIMIT = 1 << 22
#: Ways through the programs that are followed, and instructions on all of them but the first.
MAX_WAYS = 4096
MAX_WAY_INSTRUCTIONS = 1 << 22
#: Bytes that the ways which are still to be followed may take, and states that are remembered to join ways.
MAX_WAY_BYTES = 1 << 29
MAX_STATES = 1 << 16
_MEET = "ways that end in the same state meet again at a fence of all units"


def validate(
    config: MlaConfig,
    calls: Sequence[MacroCall],
    windows: Sequence[DramWindow],
    *,
    pinned: Sequence[Program] = (),
    limit: int = LIMIT,
    require_written: bool = False,
) -> ProofReport:
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
    checked = CallStream(config, calls, windows, pinned, limit)
    if not require_written and (report := proved(checked)):
        return report
    return followed(checked, require_written=require_written)


def followed(stream: CallStream, *, require_written: bool = False) -> ProofReport:
    """The proof without what is known of other streams; errors as in `validate`."""
    return _Proof(stream, require_written).run()


class _Proof:
    """Follows every way. Where two ways meet in the same state, the second ends there."""

    def __init__(self, stream: CallStream, require_written: bool):
        self.stream = stream
        config = stream.config
        self.figures = ProofFigures()
        self.ways = 1
        self._open = [
            ExecutionPath(
                HappensBefore(config.queue_depth), InitializedMemory(config) if require_written else None
            )
        ]
        self._open_bytes = self._open[0].bytes
        self._seen: dict[tuple, list[tuple[int, ...]]] = {}
        self._states = 0

    def run(self) -> ProofReport:
        """Follow all ways; ValidationError from the first that does harm."""
        spent = 0
        while self._open:
            way = self._open.pop()
            self._open_bytes -= way.bytes
            before = way.figures.instructions + way.steps
            self._follow(way)
            self.figures.join(way.figures)
            spent += way.figures.instructions - before if before else 0
            if spent > MAX_WAY_INSTRUCTIONS and self._open:
                way = self._open.pop()
                reason = (
                    f"the ways that the data may choose take more than {MAX_WAY_INSTRUCTIONS} instructions"
                )
                raise self._sequencer(way).refuse(way, "statistics", f"{reason}; {_MEET}")
        return self.figures.report(len(self.stream.calls), self.ways)

    def _follow(self, way: ExecutionPath) -> None:
        """Follow a way to the end of the stream, or to where another one has been."""
        if way.call < 0 and not self._next(way):
            return
        while True:
            sequencer = self._sequencer(way)
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

    def _next(self, way: ExecutionPath) -> bool:
        """Go on with the next call; whether there is one."""
        if way.call + 1 >= len(self.stream.calls):
            return False
        way.begin(self.stream.calls[way.call + 1].tag)
        self._choose(way)
        return True

    def _choose(self, way: ExecutionPath) -> None:
        """Go on with the program whose guard holds; both ways at a guard that the data decide."""
        for number, variant in enumerate(self.stream.calls[way.call].instead):
            way.choice = number
            decision = self._sequencer(way).decide(way, variant.guard)
            if decision is None:
                self._open.append(self._other(way))
            if decision:
                return
        way.choice = len(self.stream.calls[way.call].instead)

    def _sequencer(self, way: ExecutionPath) -> SymbolicSequencer:
        return self.stream.sequencers[way.call][way.choice]

    def _fork(self, way: ExecutionPath, sequencer: SymbolicSequencer) -> None:
        """Go both ways at a branch that the data decide."""
        other = self._other(way)
        sequencer.branch(other, True)
        other.steps += 1
        self._open.append(other)
        sequencer.branch(way, False)
        way.steps += 1

    def _other(self, way: ExecutionPath) -> ExecutionPath:
        """One more way, the same so far."""
        self.ways += 1
        if self.ways > MAX_WAYS:
            reason = f"the data may choose among more than {MAX_WAYS} ways to here; {_MEET}"
            raise self._sequencer(way).refuse(way, "statistics", reason)
        other = way.fork()
        self._open_bytes += other.bytes
        if self._open_bytes > MAX_WAY_BYTES:
            reason = (
                f"the ways that the data may choose take more than {MAX_WAY_BYTES} bytes to follow; {_MEET}"
            )
            raise self._sequencer(way).refuse(way, "statistics", reason)
        return other

    def _been_here(self, way: ExecutionPath) -> bool:
        """Whether a way that had no less time left has been in this state."""
        state, spent = way.settle(), (way.steps, *way.work)
        before = self._seen.get(state, [])
        if any(all(a >= b for a, b in zip(other, spent, strict=True)) for other in before):
            return True
        if self._states < MAX_STATES:
            self._states += 1
            self._seen[state] = [*before, spent]
        return False
