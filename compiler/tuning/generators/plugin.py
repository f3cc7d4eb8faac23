"""Generators of the user's own: whatever is wrong with one is an InputError that names it."""

import math
from collections.abc import Iterator
from typing import Any

from compiler.profile.measurement import Rejected, Result
from compiler.tuning.generators.generator import Generator
from compiler.tuning.generators.task import Candidate, GeneratorTask
from compiler.tuning.search.methods import check_schedule
from compiler.util.plugin_registry import blamed
from hw.errors import InputError, shown

#: Candidates in a row that cost no trial, such as repetitions, after which a generator has nothing more for a task.
_MOST_REFUSED = 200
#: Stages of a rejection that come before a candidate is measured.
_UNMEASURED = ("search", "compile")
_END = object()


def guarded_generator(kind: type[Generator], title: str) -> type[Generator]:
    """Subclass of a plug-in whose calls are checked.

    Parameters
    ----------
    kind : type of Generator
        The plug-in's class.
    title : str
        How messages name it.

    Returns
    -------
    type of Generator
        Its methods raise InputError if those of `kind` raise anything but a WorkError, or if `propose` yields no
        candidate. A task ends after 200 candidates in a row that are repetitions or cannot be compiled.
    """

    def __init__(self: Any, *args: Any, **named: Any) -> None:  # noqa: N807 - becomes the constructor
        self._refused_in_a_row = 0
        blamed(lambda: kind.__init__(self, *args, **named), title, "__init__")

    def propose(self: Any, task: GeneratorTask) -> Iterator[Candidate]:
        self._refused_in_a_row = 0
        offered = blamed(lambda: iter(kind.propose(self, task)), title, "propose")
        while self._refused_in_a_row < _MOST_REFUSED:
            candidate = blamed(lambda: next(offered, _END), title, "propose")
            if candidate is _END:
                return
            yield _checked(candidate, title)

    def tell(self: Any, candidate: Candidate, result: Result) -> None:
        unmeasured = isinstance(result, Rejected) and result.stage in _UNMEASURED
        self._refused_in_a_row = self._refused_in_a_row + 1 if unmeasured else 0
        blamed(lambda: kind.tell(self, candidate, result), title, "tell")

    return type(
        kind.__name__,
        (kind,),
        {
            "__init__": __init__,
            "propose": propose,
            "tell": tell,
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
