"""Programs in the writable instruction store, and the opcodes that are bound to them."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cosim.allocator import Allocator
from cosim.csr import CsrAccess
from cosim.status import LOADER_ERRORS
from hw.bus.register_map import ADDRESS
from hw.errors import InputError
from hw.isa.enums import Compare, SegmentState
from hw.isa.macro_instruction import CANDIDATE
from hw.isa.program import Program

_IN_USE = 16
#: Bits of IRQ_STATUS for the end of a load or check, and for an error of the loader.
_LOADER_IRQS = 12
#: Maximum number of cycles of one load.
_LOAD_TIMEOUT_CYCLES = 1 << 22
_OPEN, _CHECK, _FREE, _PIN = 1, 2, 3, 4
#: Cycles between two polls of a short operation.
_POLL_CYCLES = 64


@dataclass(frozen=True)
class Candidate:
    """Program that an opcode may run, with a guard that compares a selected value with a constant.

    Parameters
    ----------
    segment : int
        Segment that holds the program.
    compare : Compare
        Comparison of the guard; ALWAYS ignores the other fields.
    selector : int
        Selector of the value that the guard compares: an operand or a statistic.
    value : int
        Constant with which the guard compares the selected value, a 32-bit word.
    """

    segment: int
    compare: Compare = Compare.ALWAYS
    selector: int = 0
    value: int = 0


@dataclass(frozen=True, eq=False)
class StartedLoads:
    """Loads of programs that have been started and not yet finished (`ProgramStore.start`).

    Parameters
    ----------
    programs : tuple of Program
        Programs in the order of their loads.
    taken : list of (int, Program or None)
        Segment of each program, and the program that it held before.
    mark : int
        Mark of the allocator before the images were allocated.
    done : callable
        Waits for the register accesses, and returns the values that each group has read.
    """

    programs: tuple[Program, ...]
    taken: list[tuple[int, Program | None]]
    mark: int
    done: Callable[[], list[list[int]]]


def _opening(segment: int, base: int, length: int) -> list[tuple[str, int | None]]:
    """Return the accesses that open a segment and read the error, if any, and the base."""
    return [
        ("SEG_SELECT", segment),
        ("SEG_BASE", base),
        ("SEG_LENGTH", length),
        ("SEG_COMMAND", _OPEN),
        ("LOADER_ERROR", None),
        ("SEG_BASE", None),
    ]


def _refusal(what: str, error: int) -> InputError:
    reason = LOADER_ERRORS[error] if error < len(LOADER_ERRORS) else f"error {error}"
    return InputError(f"{what}: {reason}")


class ProgramStore:
    """Manager of the instruction store, which loads programs and binds opcodes.

    Parameters
    ----------
    registers : CsrAccess
        Access to the device's registers.
    memory : Allocator
        Allocator of DRAM for program images, which the chip's loader fetches.
    """

    def __init__(self, registers: CsrAccess, memory: Allocator):
        self.config = registers.device.config
        self.device = registers.device
        self.get, self.set, self.access = registers.get, registers.set, registers.access
        self.memory = memory
        self.programs: dict[int, Program] = {}
        self._bases: dict[int, int] = {}

    def load(
        self,
        program: Program,
        segment: int | None = None,
        *,
        crc: int | None = None,
        dma: bool = False,
        pin: bool = False,
    ) -> int:
        """Load a program into a segment and return the index of the segment.

        Parameters
        ----------
        program : Program
            Program to load into the store.
        segment : int or None
            Index of the segment, whose current program is replaced; None for the first free segment.
        crc : int or None
            Expected CRC of the loaded words; None for the CRC of the program.
        dma : bool
            True to let the chip fetch the words from DRAM; False to write the words through registers.
        pin : bool
            True to make the segment callable from every program, after which it can no longer be changed.

        Raises
        ------
        InputError
            No segment is free, not enough words are free, or the chip rejects the program.
        """
        if dma:
            (segment,) = self.finish(
                self.start([program], None if segment is None else [segment], None if crc is None else [crc])
            )
        else:
            segment = self._free_segment() if segment is None else segment
            self._open(segment, program, program.crc if crc is None else crc)
            self.set("WIS_ADDRESS", self._bases[segment])
            low, high = ADDRESS["WIS_DATA_LO"], ADDRESS["WIS_DATA_HI"]
            self.device.write_regs(
                [pair for word in program.words for pair in ((low, word & 0xFFFFFFFF), (high, word >> 32))]
            )
            self.set("SEG_COMMAND", _CHECK)
            while (state := self.segment_state(segment)) == SegmentState.CHECKING:
                self.device.run_cycles(_POLL_CYCLES)
            if state != SegmentState.VALID:
                self._refused(f"program {program.name!r} cannot be loaded into segment {segment}")
            self.programs[segment] = program
        if pin:
            self.access(("SEG_SELECT", segment), ("SEG_COMMAND", _PIN))
        return segment

    def start(
        self,
        programs: Sequence[Program],
        segments: Sequence[int] | None = None,
        crcs: Sequence[int] | None = None,
    ) -> "StartedLoads":
        """Start to load programs, whose words the chip fetches from DRAM one program after the other.

        Parameters
        ----------
        programs : sequence of Program
            Programs to load.
        segments : sequence of int or None
            Index of the segment of each program; None for free segments.
        crcs : sequence of int or None
            Expected CRC of the words of each program; None for the CRCs of the programs.

        Raises
        ------
        InputError
            Not enough segments or words are free; nothing has been loaded.
        """
        mark, taken, groups = self.memory.mark(), list[tuple[int, Program | None]](), [self._irq_accesses()]
        try:
            for number, program in enumerate(programs):
                segment = self._free_segment() if segments is None else segments[number]
                base = self._room(segment, len(program.words), program.name)
                address = self.memory.alloc(len(program.image), 64, f"the image of program {program.name!r}")
                self.device.dram[address : address + len(program.image)] = np.frombuffer(
                    program.image, np.uint8
                )
                groups[-1] += [
                    *_opening(segment, base, len(program.words)),
                    ("SEG_CRC", program.crc if crcs is None else crcs[number]),
                    ("LOADER_SOURCE", address),
                    ("LOADER_COMMAND", 1),
                ]
                groups.append([("SEG_STATUS", None), ("LOADER_ERROR", None), ("IRQ_STATUS", _LOADER_IRQS)])
                taken.append((segment, self.programs.get(segment)))
                self.programs[segment], self._bases[segment] = program, base
        except InputError:
            self._restore(taken)
            self.memory.release(mark)
            raise
        if not programs:
            return StartedLoads((), [], mark, list)
        groups[-1].append(("IRQ_ENABLE", self.get("IRQ_ENABLE")))
        done = self.device.start_accesses(
            [[(ADDRESS[name], value) for name, value in group] for group in groups], _LOAD_TIMEOUT_CYCLES
        )
        return StartedLoads(tuple(programs), taken, mark, done)

    def finish(self, started: "StartedLoads") -> list[int]:
        """Wait until started programs are loaded, and return their segments.

        Raises
        ------
        InputError
            The chip rejects a program; the segments of all programs that were started with it are then unusable.
        """
        found = started.done()
        self.memory.release(started.mark)
        segments = [segment for segment, _ in started.taken]
        for number, (program, segment) in enumerate(zip(started.programs, segments, strict=True)):
            # The values read before and after each load are in adjacent groups.
            error, base = found[number][-2:]
            state, reason = found[number + 1][:2]
            self._bases[segment] = base
            what = "opened for" if error else "loaded with" if state & 7 != SegmentState.VALID else ""
            if what:
                for other in set(segments) - {segment}:
                    self.access(("SEG_SELECT", other), ("SEG_COMMAND", _FREE))
                self._restore(started.taken)
                raise _refusal(
                    f"segment {segment} cannot be {what} program {program.name!r}", error or reason
                )
        return segments

    def _restore(self, taken: Sequence[tuple[int, Program | None]]) -> None:
        """Forget programs that were not loaded."""
        for segment, before in taken:
            self.programs.pop(segment, None)
            if before is not None:
                self.programs[segment] = before

    def _free_segment(self) -> int:
        free = set(range(self.config.segments)) - set(self.programs)
        if not free:
            raise InputError(f"all {self.config.segments} segments of the instruction store are in use")
        return min(free)

    def _irq_accesses(self) -> list[tuple[str, int | None]]:
        """Return the accesses after which only the end of a load or an error of the loader raises the interrupt."""
        return [("IRQ_STATUS", _LOADER_IRQS), ("IRQ_ENABLE", _LOADER_IRQS)]

    def unload(self, segment: int) -> None:
        """Free a segment and its words."""
        (error,) = self.access(("SEG_SELECT", segment), ("SEG_COMMAND", _FREE), ("LOADER_ERROR", None))
        if error:
            self._refused(f"segment {segment} cannot be freed")
        self.programs.pop(segment, None)
        self._bases.pop(segment, None)

    def base(self, segment: int) -> int:
        """Return the instruction store address of the first word of the program in a segment."""
        return self._bases[segment]

    def in_use(self, segments: Iterable[int]) -> set[int]:
        """Return the segments that are pinned, or contain the running program or one of its callers.

        A segment in use cannot be replaced.
        """
        asked = list(segments)
        pairs: list[tuple[str, int | None]] = [
            access for segment in asked for access in (("SEG_SELECT", segment), ("SEG_STATUS", None))
        ]
        states = self.access(*pairs) if asked else []
        return {segment for segment, state in zip(asked, states, strict=True) if state & _IN_USE}

    def segment_state(self, segment: int) -> SegmentState:
        """Return the state of a segment."""
        return SegmentState(self._status(segment) & 7)

    def _status(self, segment: int) -> int:
        return self.access(("SEG_SELECT", segment), ("SEG_STATUS", None))[0]

    def _open(self, segment: int, program: Program, crc: int) -> None:
        length = len(program.words)
        base = self._room(segment, length, program.name)
        error, base = self.access(*_opening(segment, base, length), ("SEG_CRC", crc))
        if error:
            self._refused(f"segment {segment} cannot be opened for program {program.name!r}")
        self._bases[segment] = base

    def fit(self, lengths: Sequence[int], without: Collection[int] = ()) -> bool:
        """Return True if programs could be loaded, in the given order, once some segments have been unloaded.

        Parameters
        ----------
        lengths : Sequence of int
            Length of each program in words.
        without : Collection of int
            Segments that are to be unloaded first.
        """
        taken = self._taken(set(self.programs) - set(without))
        for length in lengths:
            start = self._gap(taken, length)
            if start is None or len(taken) >= self.config.segments:
                return False
            taken.append((start, length))
        return True

    def _taken(self, segments: Iterable[int]) -> list[tuple[int, int]]:
        """Return the address of the first word and the number of words of each segment in `segments`."""
        return [(self._bases[segment], len(self.programs[segment].words)) for segment in segments]

    def _gap(self, taken: Iterable[tuple[int, int]], length: int) -> int | None:
        """Return the address of the first gap of at least `length` words between used ranges; None if there is none."""
        start = 0
        for base, size in sorted(taken):
            if base - start >= length:
                break
            start = base + size
        return start if start + length <= self.config.wis_words else None

    def _room(self, segment: int, length: int, name: str) -> int:
        """Return the address of `length` free words for a program; the words of `segment` also count as free."""
        others = self._taken(each for each in self.programs if each != segment)
        start = self._gap(others, length)
        if start is None:
            taken = sum(size for _, size in others)
            raise InputError(
                f"program {name!r} of {length} words is too long: the instruction store of "
                f"{self.config.wis_words} has {taken} in use"
            )
        return start

    def _refused(self, what: str) -> None:
        raise _refusal(what, self.get("LOADER_ERROR"))

    def bind(self, opcode: int, candidates: Iterable[Candidate], *, commit: bool = True) -> None:
        """Bind an opcode to candidates; its macro-instructions run the first candidate whose guard holds.

        Parameters
        ----------
        opcode : int
            Opcode to bind to the candidates.
        candidates : Iterable of Candidate
            Candidates in order of preference; the remaining entries of the opcode become invalid.
        commit : bool
            True to make the new dispatch table live immediately.
        """
        self.bind_all({opcode: list(candidates)}, commit=commit)

    def bind_all(self, entries: Mapping[int, Sequence[Candidate]], *, commit: bool = True) -> None:
        """Bind several opcodes at the same time, each to its candidates; `commit` as in `bind`."""
        accesses = [access for opcode, each in entries.items() for access in self._binding(opcode, each)]
        if commit and accesses:
            accesses.append(("DISPATCH_COMMIT", 1))
        self.access(*accesses)

    def _binding(self, opcode: int, entries: Sequence[Candidate]) -> list[tuple[str, int | None]]:
        """Return the accesses that write the candidates of an opcode to the shadow of the dispatch table."""
        if not 0 <= opcode < self.config.opcodes:
            raise InputError(f"opcode must be in 0..{self.config.opcodes - 1}, not {opcode!r}")
        if len(entries) > self.config.candidates:
            raise InputError(f"an opcode has at most {self.config.candidates} candidates, not {len(entries)}")
        accesses: list[tuple[str, int | None]] = []
        for number in range(self.config.candidates):
            entry = entries[number] if number < len(entries) else None
            word = (
                CANDIDATE.pack(valid=1, segment=entry.segment, compare=entry.compare, selector=entry.selector)
                if entry
                else 0
            )
            accesses += [
                ("DISPATCH_INDEX", opcode * self.config.candidates + number),
                ("DISPATCH_WORD", word),
                ("DISPATCH_VALUE", entry.value if entry else 0),
            ]
        return accesses
