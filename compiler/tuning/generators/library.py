"""Registry of generators. To add a built-in one, write its class and register it here (docs/generators.md)."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from compiler.profile.measurement import Rejected, Result
from compiler.tuning.generators.generator import Candidate, Generator, GeneratorTask
from compiler.tuning.search.methods import check_schedule
from compiler.util.plugin_registry import Registry, blamed
from hw.errors import InputError, shown

#: Generators in the order in which they are queried: programs are rewritten after schedules are found.
GENERATORS: "Registry[Generator]" = Registry(
    "generator",
    group="mla.generators",
    base="compiler.tuning.generators.generator:Generator",
    guard="compiler.tuning.generators.library:guarded_generator",
    classes={
        "fusion": "compiler.tuning.generators.schedule_generators:FusionGenerator",
        "tiling": "compiler.tuning.generators.schedule_generators:TilingGenerator",
        "polish": "compiler.tuning.generators.peephole:PeepholeGenerator",
    },
)

#: Types by which users specify a generator: a name, a class or an instance.
GeneratorSpec = "str | type[Generator] | Generator"


def make_generators(given: "GeneratorSpec | Sequence[GeneratorSpec]") -> "list[Generator]":
    """Create the generators that a user specified.

    Parameters
    ----------
    given : str, class, instance, or sequence of them
        A name, `module:Class`, a subclass of Generator, or an instance of one, which is used unchanged.

    Raises
    ------
    InputError
        There is no such generator, or its constructor needs arguments.
    """
    from compiler.tuning.generators.generator import Generator

    if isinstance(given, str | type | Generator):
        given = [given]
    return [each if isinstance(each, Generator) else GENERATORS.resolve(each)() for each in given]


#: Maximum number of successive candidates that cost no trial, such as repetitions, before a task ends.
_MAX_REFUSED = 200
#: Stages of rejections that precede the measurement of a candidate.
_UNMEASURED = ("search", "compile")
_END = object()


def guarded_generator(kind: type[Generator], title: str) -> type[Generator]:
    """Subclass of a plug-in whose calls are checked.

    Parameters
    ----------
    kind : type of Generator
        The plug-in's class.
    title : str
        Name of the plug-in in messages.

    Returns
    -------
    type of Generator
        Subclass whose methods raise InputError if those of `kind` raise anything but a WorkError, or if `propose`
        yields anything but a candidate. A task ends after 200 successive candidates that are repetitions or cannot be
        compiled.
    """

    def __init__(self: Any, *args: Any, **named: Any) -> None:  # noqa: N807 - becomes the constructor
        self._refused_in_a_row = 0
        blamed(lambda: kind.__init__(self, *args, **named), title, "__init__")

    def propose(self: Any, task: GeneratorTask) -> Iterator[Candidate]:
        self._refused_in_a_row = 0
        candidates = blamed(lambda: iter(kind.propose(self, task)), title, "propose")
        while self._refused_in_a_row < _MAX_REFUSED:
            candidate = blamed(lambda: next(candidates, _END), title, "propose")
            if candidate is _END:
                return
            yield _checked(candidate, title)

    def observe(self: Any, candidate: Candidate, result: Result) -> None:
        unmeasured = isinstance(result, Rejected) and result.stage in _UNMEASURED
        self._refused_in_a_row = self._refused_in_a_row + 1 if unmeasured else 0
        blamed(lambda: kind.observe(self, candidate, result), title, "observe")

    return type(
        kind.__name__,
        (kind,),
        {
            "__init__": __init__,
            "propose": propose,
            "observe": observe,
            "__module__": kind.__module__,
            "__doc__": kind.__doc__,
        },
    )


def _checked(candidate: object, title: str) -> Candidate:
    if not isinstance(candidate, Candidate):
        raise InputError(f"{title}: propose must yield Candidates, not {shown(candidate)}")
    check_schedule(candidate.schedule, f"{title}: the schedule of a Candidate must be a Schedule")
    predicted = candidate.predicted
    if predicted is not None and not (isinstance(predicted, int | float) and math.isfinite(predicted)):
        raise InputError(f"{title}: predicted must be a number of cycles or None, not {shown(predicted)}")
    return candidate
