"""Guards around plug-in search methods and generators, which convert failures to InputErrors that name the plug-in."""

import math
from collections.abc import Iterator
from typing import Any

from compiler.cost.learned_model import PredictionErrors
from compiler.profile.measurement import Rejected, Result
from compiler.schedule.schedule import Schedule
from compiler.tuning.generators.generator import Candidate, Generator, GeneratorTask
from compiler.tuning.search.method import SearchMethod, Trial
from compiler.util.plugin_registry import blamed
from hw.errors import InputError, shown

#: Maximum number of successive candidates that cost no trial, such as repetitions, before a task ends.
_MAX_REJECTED = 200
#: Stages in which candidates are rejected before they are measured.
_UNMEASURED = ("search", "compile")
_END = object()


def guarded_method(kind: type[SearchMethod], title: str) -> type[SearchMethod]:
    """Return a subclass of a plug-in's search method whose calls are checked.

    Parameters
    ----------
    kind : type of SearchMethod
        The plug-in's class.
    title : str
        Name of the plug-in in messages.

    Returns
    -------
    type of SearchMethod
        Subclass whose methods raise InputError in two cases: a method of `kind` raises anything but a WorkError, or
        `propose` returns anything but a schedule without forbidden transformations.
    """

    def __init__(self: SearchMethod, *args: Any, **named: Any) -> None:  # noqa: N807 - becomes the constructor
        blamed(lambda: kind.__init__(self, *args, **named), title, "__init__")
        if not isinstance(getattr(self, "best", None), Trial):
            raise InputError(f"{title}: __init__ must call that of SearchMethod")

    def propose(self: SearchMethod) -> Schedule:
        schedule = blamed(lambda: kind.propose(self), title, "propose")
        check_schedule(schedule, f"{title}: propose must return a Schedule")
        violation = self.constraints.violation(schedule, self.first)
        if violation is not None:
            raise InputError(
                f"{title}: propose must change no {violation}, which is forbidden: check with `register` first"
            )
        return schedule

    def learn(self: SearchMethod, trial: Trial) -> None:
        blamed(lambda: kind.learn(self, trial), title, "learn")

    def predictor(self: SearchMethod) -> PredictionErrors | None:
        errors = blamed(lambda: kind.predictor.__get__(self), title, "predictor")
        if not isinstance(errors, PredictionErrors | None):
            raise InputError(f"{title}: predictor must be PredictionErrors or None, not {shown(errors)}")
        return errors

    return type(
        kind.__name__,
        (kind,),
        {
            "__init__": __init__,
            "propose": propose,
            "learn": learn,
            "predictor": property(predictor),
            "__module__": kind.__module__,
            "__doc__": kind.__doc__,
        },
    )


def check_schedule(schedule: object, rule: str) -> None:
    """Raise an InputError that begins with `rule`, unless an object is a schedule that JSON can represent."""
    if not isinstance(schedule, Schedule):
        raise InputError(f"{rule}, not {shown(schedule)}")
    try:
        same = Schedule.from_json(schedule.to_json()) == schedule
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{rule} of the types that Schedule documents: {error}") from error
    except InputError as error:
        raise InputError(f"{rule} of the types that Schedule documents: {error}") from error
    if not same:
        raise InputError(
            f"{rule} of the types that Schedule documents: it changes when written and read back"
        )


def guarded_generator(kind: type[Generator], title: str) -> type[Generator]:
    """Return a subclass of a plug-in's generator whose calls are checked.

    Parameters
    ----------
    kind : type of Generator
        The plug-in's class.
    title : str
        Name of the plug-in in messages.

    Returns
    -------
    type of Generator
        Subclass whose methods raise InputError in two cases: a method of `kind` raises anything but a WorkError, or
        `propose` yields anything but a candidate. A task ends after 200 successive candidates that are repetitions or
        cannot be compiled.
    """

    def __init__(self: Any, *args: Any, **named: Any) -> None:  # noqa: N807 - becomes the constructor
        self._rejected_in_a_row = 0
        blamed(lambda: kind.__init__(self, *args, **named), title, "__init__")

    def propose(self: Any, task: GeneratorTask) -> Iterator[Candidate]:
        self._rejected_in_a_row = 0
        candidates = blamed(lambda: iter(kind.propose(self, task)), title, "propose")
        while self._rejected_in_a_row < _MAX_REJECTED:
            candidate = blamed(lambda: next(candidates, _END), title, "propose")
            if candidate is _END:
                return
            yield _checked(candidate, title)

    def observe(self: Any, candidate: Candidate, result: Result) -> None:
        unmeasured = isinstance(result, Rejected) and result.stage in _UNMEASURED
        self._rejected_in_a_row = self._rejected_in_a_row + 1 if unmeasured else 0
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
