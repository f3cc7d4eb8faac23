"""Exhaustive exploration of all execution paths of a stream of macro-instructions."""

from collections.abc import Sequence

from compiler.validate.errors import ProofFigures, ProofReport
from compiler.validate.execution_path import ExecutionPath
from compiler.validate.footprint import InitializedMemory
from compiler.validate.happens_before import HappensBefore
from compiler.validate.macro_call import CallStream, MacroCall
from compiler.validate.sequence_proof import proved
from compiler.validate.sequencer import SymbolicSequencer
from cosim.semantics.command_checks import DramWindow
from hw.config import MlaConfig
from hw.isa.micro_instruction import MicroOp
from hw.isa.program import Program

#: Default limit on the instructions of one call.
LIMIT = 1 << 22
#: Limits on the explored paths, and on the instructions of all paths except the first.
MAX_PATHS = 4096
MAX_PATH_INSTRUCTIONS = 1 << 22
#: Limits on the bytes of paths still to be explored, and on the states remembered to merge paths.
MAX_PATH_BYTES = 1 << 29
MAX_STATES = 1 << 16
_MEET = "paths in the same state merge at a fence of all units"


def validate(
    config: MlaConfig,
    calls: Sequence[MacroCall],
    windows: Sequence[DramWindow],
    *,
    pinned: Sequence[Program] = (),
    limit: int = LIMIT,
    require_written: bool = False,
) -> ProofReport:
    """Prove that a stream of macro-instructions is safe for all data and all timings.

    A stream is safe if no instruction traps, every call terminates, all accesses stay within the memories and the
    windows, conflicting accesses are ordered, and all semaphores are zero at the end. Results then do not depend on
    timing. Initially, all semaphores are zero and no command is in flight.

    Parameters
    ----------
    config : MlaConfig
        Hardware configuration to validate for.
    calls : sequence of MacroCall
        Macro-instructions in submission order. No macro-instruction may depend on a later one to finish.
    windows : sequence of (first byte, last byte, permissions)
        DRAM ranges that programs may access; permission bit 0 permits reads, bit 1 permits writes.
    pinned : sequence of Program
        Programs that other programs may call, in the order of their segments 0, 1, ...
    limit : int
        Maximum number of instructions that one call may execute.
    require_written : bool
        True to also reject reads of scratchpad, accumulator, parameter slots or tables before the stream has written
        them.

    Raises
    ------
    ValidationError
        The stream is unsafe or cannot be proved safe; the error names the instruction.
    InputError
        An argument is out of range.
    """
    checked = CallStream(config, calls, windows, pinned, limit)
    if not require_written and (report := proved(checked)):
        return report
    return followed(checked, require_written=require_written)


def followed(stream: CallStream, *, require_written: bool = False) -> ProofReport:
    """Prove that a stream is safe by exploring it, without the proof memo; raise the errors of `validate`."""
    return _Proof(stream, require_written).run()


class _Proof:
    """Exploration of all paths; a path is abandoned when it reaches a state that was explored before."""

    def __init__(self, stream: CallStream, require_written: bool):
        self.stream = stream
        config = stream.config
        self.figures = ProofFigures()
        self.paths = 1
        self._open = [
            ExecutionPath(
                HappensBefore(config.queue_depth), InitializedMemory(config) if require_written else None
            )
        ]
        self._open_bytes = self._open[0].bytes
        self._seen: dict[tuple, list[tuple[int, ...]]] = {}
        self._states = 0

    def run(self) -> ProofReport:
        """Explore all paths; raise ValidationError at the first unsafe path."""
        spent = 0
        while self._open:
            path = self._open.pop()
            self._open_bytes -= path.bytes
            before = path.figures.instructions + path.steps
            self._follow(path)
            self.figures.join(path.figures)
            spent += path.figures.instructions - before if before else 0
            if spent > MAX_PATH_INSTRUCTIONS and self._open:
                path = self._open.pop()
                reason = (
                    f"the paths that the data can select take more than {MAX_PATH_INSTRUCTIONS} instructions"
                )
                raise self._sequencer(path).error_at(path, "statistics", f"{reason}; {_MEET}")
        return self.figures.report(len(self.stream.calls), self.paths)

    def _follow(self, path: ExecutionPath) -> None:
        """Explore a path to the end of the stream, or to a state that was explored before."""
        if path.call < 0 and not self._next(path):
            return
        while True:
            sequencer = self._sequencer(path)
            op = sequencer.run(path)
            if op is None:
                self._fork(path, sequencer)
                continue
            if op is MicroOp.HALT:
                path.figures.instructions += path.steps
                if not self._next(path):
                    path.order.end()
                    return
            if self.paths > 1 and path.order.quiet and self._been_here(path):
                path.figures.instructions += path.steps
                return

    def _next(self, path: ExecutionPath) -> bool:
        """Start the next call; return False if there is none."""
        if path.call + 1 >= len(self.stream.calls):
            return False
        path.begin(self.stream.calls[path.call + 1].tag)
        self._choose(path)
        return True

    def _choose(self, path: ExecutionPath) -> None:
        """Select the first program whose guard holds; fork the path if a guard depends on the data."""
        for number, variant in enumerate(self.stream.calls[path.call].instead):
            path.choice = number
            decision = self._sequencer(path).decide(path, variant.guard)
            if decision is None:
                self._open.append(self._other(path))
            if decision:
                return
        path.choice = len(self.stream.calls[path.call].instead)

    def _sequencer(self, path: ExecutionPath) -> SymbolicSequencer:
        return self.stream.sequencers[path.call][path.choice]

    def _fork(self, path: ExecutionPath, sequencer: SymbolicSequencer) -> None:
        """Fork a path at a branch that depends on the data."""
        other = self._other(path)
        sequencer.branch(other, True)
        other.steps += 1
        self._open.append(other)
        sequencer.branch(path, False)
        path.steps += 1

    def _other(self, path: ExecutionPath) -> ExecutionPath:
        """Return a copy of a path, which counts as an additional path."""
        self.paths += 1
        if self.paths > MAX_PATHS:
            reason = f"the data can select more than {MAX_PATHS} paths up to here; {_MEET}"
            raise self._sequencer(path).error_at(path, "statistics", reason)
        other = path.fork()
        self._open_bytes += other.bytes
        if self._open_bytes > MAX_PATH_BYTES:
            reason = f"the paths that the data can select take more than {MAX_PATH_BYTES} bytes to explore; {_MEET}"
            raise self._sequencer(path).error_at(path, "statistics", reason)
        return other

    def _been_here(self, path: ExecutionPath) -> bool:
        """Return True if a path that had spent no more steps and work was in the same state before."""
        state, spent = path.settle(), (path.steps, *path.work)
        before = self._seen.get(state, [])
        if any(all(a >= b for a, b in zip(other, spent, strict=True)) for other in before):
            return True
        if self._states < MAX_STATES:
            self._states += 1
            self._seen[state] = [*before, spent]
        return False
