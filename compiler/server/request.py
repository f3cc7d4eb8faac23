"""A request on its way."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field

from numpy.typing import NDArray

from compiler.runtime.control_flow import value_of
from compiler.runtime.stages import Stage
from compiler.server.versions import Version

Arrays = Mapping[str, NDArray]
#: What a request asks of the machine, one stage after the other, and what it gets for it.
Steps = Generator[tuple[Stage, Arrays], Arrays, None]
_MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class MacroTime:
    """A macro-instruction that has completed.

    Parameters
    ----------
    program : str
        Its name.
    started, retired : int
        Cycles, the low 32 bits.
    cycles : int
        From its start, or the end of the one before if that is later, to its end.
    """

    program: str
    started: int
    retired: int
    cycles: int


@dataclass(frozen=True)
class RequestResult:
    """A request that has come out.

    Parameters
    ----------
    index : int
        Counted from 0.
    inputs, outputs : dict
        By name.
    version : Version
        What carried out all of it.
    macros : tuple of MacroTime
        Its macro-instructions.
    cycles : int
        What they took together.
    delay : int
        Cycles in which the machine stood still although this request had been made: programs were on their way.
    runs : tuple of int
        How often each stage on the accelerator ran.
    disturbed : bool
        Programs were loaded meanwhile, over the same bus, or the request before was another version's.
    behind : int
        Requests on their way behind it when it was done.
    together : int
        Requests that its macro-instructions carried out.
    """

    index: int
    inputs: Arrays
    outputs: dict[str, NDArray]
    version: Version
    macros: tuple[MacroTime, ...]
    cycles: int
    delay: int
    runs: tuple[int, ...]
    disturbed: bool
    behind: int
    together: int = 1


@dataclass(eq=False)
class InFlightRequest:
    """A request that has not come out yet, in a slot of the buffers.

    Of its samples `count` count. `steps` is None once all is done; `asked` is the cycle in which its stage was,
    `inside` counts the subgraphs that it is in, `begun` how often it has begun, `loads` the programs loaded before.
    """

    index: int
    inputs: Arrays
    slot: int
    version: Version
    count: int
    asked: int = 0
    loads: int = 0
    steps: Steps | None = None
    stage: Stage | None = None
    values: dict[str, NDArray] = field(default_factory=dict)
    inside: int = 0
    begun: int = 0
    macros: list[MacroTime] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)
    delay: int = 0

    def result(self, *, disturbed: bool, behind: int) -> RequestResult:
        """Once it is done."""
        outputs = {t.name: value_of(t, self.values) for t in self.version.network.outputs}
        cycles = sum(macro.cycles for macro in self.macros)
        return RequestResult(
            self.index,
            self.inputs,
            outputs,
            self.version,
            tuple(self.macros),
            cycles,
            self.delay,
            tuple(self.runs),
            disturbed,
            behind,
        )


class Clock:
    """Turns completion records into cycles of macro-instructions, in the order of the ring."""

    def __init__(self) -> None:
        self._before: int | None = None

    def time(self, flight: InFlightRequest, name: str, started: int, retired: int) -> None:
        """Enter a macro-instruction that has completed."""
        wait = 0 if self._before is None else started - self._before & _MASK
        free = wait < 1 << 31  # it started after the one before had ended
        begin = started if self._before is None or free else self._before
        flight.macros.append(MacroTime(name, started, retired, retired - begin & _MASK))
        since = max(wait, 0) if free else 0
        waited = started - flight.asked & _MASK
        if waited < 1 << 31:
            flight.delay += min(since, waited)
        self._before = retired
