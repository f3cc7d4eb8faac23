"""Registry of search methods, built-in and from plug-ins."""

from typing import Any

from compiler.cost.learned.model import PredictionErrors
from compiler.schedule.schedule import Schedule
from compiler.tuning.search.method import SearchMethod, Trial
from compiler.util.plugin_registry import Registry, blamed
from hw.errors import InputError, shown


def guarded_method(kind: type[SearchMethod], title: str) -> type[SearchMethod]:
    """Subclass of a plug-in whose calls are checked.

    Parameters
    ----------
    kind : type of SearchMethod
        The plug-in's class.
    title : str
        Name of the plug-in in messages.

    Returns
    -------
    type of SearchMethod
        Subclass whose methods raise InputError if those of `kind` raise anything but a WorkError, or if `propose`
        does not return a schedule or returns one that uses a forbidden transformation.
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
    """Raise InputError, which begins with `rule`, unless an object is a schedule that survives serialization."""
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


METHODS: "Registry[SearchMethod]" = Registry(
    "search method",
    group="mla.search_methods",
    base="compiler.tuning.search.method:SearchMethod",
    guard="compiler.tuning.search.methods:guarded_method",
    classes={
        "random": "compiler.tuning.search.random_search:RandomSearch",
        "evolution": "compiler.tuning.search.evolution:EvolutionarySearch",
        "coordinate": "compiler.tuning.search.coordinate:CoordinateSearch",
        "hpm": "compiler.tuning.search.model_guided:ModelGuidedSearch",
        "generators": "compiler.tuning.search.generator_search:GeneratorSearch",
        "edits": "compiler.tuning.search.program_edit_search:ProgramEditSearch",
    },
)
#: Name of the language-model method: `GeneratorSearch` with the model as its only generator.
LLM = "llm"
#: Name of the method that uses generators.
GENERATORS_METHOD = "generators"
