"""The built-in language model as a generator: it is shown a layer and what it costs, and completes its schedule."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from compiler.llm.author import Author
from compiler.llm.changes import SPANS, ChangesGrammar, with_changes
from compiler.llm.decode import Answer, draw
from compiler.llm.describe import BEST, Subject
from compiler.llm.gpt import Gpt
from compiler.llm.language import LANGUAGE
from compiler.llm.weights import load
from compiler.lower.layer import ConvLayer, DepthwiseLayer, Layer
from compiler.schedule.heuristic import spots_of
from compiler.schedule.schedule import LayerSchedule
from compiler.specialize.task import Candidate, Task
from hw.errors import InputError

#: The model that comes with the compiler.
SHIPPED = Path(__file__).with_name("model.safetensors")
#: Answers drawn at a time, and how often for a layer.
_DRAWN, _ROUNDS = 16, 4
#: What is chosen for layers without kernels.
_PLAIN = (
    "rows",
    "columns",
    "depth",
    "x_buffers",
    "y_buffers",
    "prefetch",
    "on_chip",
    "overlap",
    "joined",
    "counted",
)
#: What is not the model's to choose: planes need a fusion of two layers, and some of the others the whole network.
_KEPT = ("planes",)


class Writer(Author):
    """Asks the model about one layer after another, the slowest first, and proposes its answers, the likeliest first.

    Parameters
    ----------
    model : Gpt or None
        Who answers; None: the one that comes with the compiler.
    temperature : float
        Of the answers, as for `draw`.

    Raises
    ------
    InputError
        The model's file is damaged.
    """

    def __init__(self, model: Gpt | None = None, temperature: float = 1.0):
        super().__init__()
        self.model = load(SHIPPED)[0] if model is None else model
        self.temperature = temperature
        self._rng: np.random.Generator | None = None

    def propose(self, task: Task) -> Iterator[Candidate]:
        """Answers that can be compiled, each once."""
        rng = self._rng = self._rng or np.random.default_rng(task.seed)
        subjects = subjects_of(task)
        tried: set[tuple[str, LayerSchedule]] = {(name, each.schedule) for name, each in subjects.items()}
        for _ in range(_ROUNDS):
            for name, subject in subjects.items():
                fitting = Fitting(task, name, subject, tried)
                try:
                    question = subject.words(BEST, profile=self.model.profile)
                except ValueError:  # a size that has no words
                    continue
                answers = draw(
                    self.model, LANGUAGE, question, fitting, _DRAWN, rng, temperature=self.temperature
                )
                yield from self._candidates(task, name, subject, answers, tried)

    def _candidates(
        self, task: Task, name: str, subject: Subject, answers: Sequence[Answer],
        tried: set[tuple[str, LayerSchedule]],
    ) -> Iterator[Candidate]:  # fmt: skip
        for answer in sorted(answers, key=lambda each: -each.likelihood):
            if not answer.complete:
                continue
            schedule = with_changes(answer.words, subject.schedule)
            if (name, schedule) not in tried:
                tried.add((name, schedule))
                why = f"{name}: {' '.join(answer.words[:-1])}"
                yield task.with_layers({name: schedule}, self.name, why)


class Fitting:
    """The grammar of changes of a layer's schedule, of which those end that can be compiled and were not tried.

    Parameters
    ----------
    task : Task
        The network.
    name : str
        The layer's.
    subject : Subject
        The layer.
    tried : set
        Names and schedules that are of no use any more.
    """

    def __init__(self, task: Task, name: str, subject: Subject, tried: set[tuple[str, LayerSchedule]]):
        self.task, self.name, self.subject, self.tried = task, name, subject, tried
        self._grammar = ChangesGrammar(fields_of(subject.layer))
        self._known: dict[LayerSchedule, bool] = {}

    def after(self, words: Sequence[str]) -> Sequence[str]:
        """Words that may follow."""
        return self._grammar.after(words)

    def ends(self, words: Sequence[str]) -> bool:
        """Whether a complete answer is one of those."""
        schedule = with_changes(words, self.subject.schedule)
        if schedule not in self._known:
            self._known[schedule] = (self.name, schedule) not in self.tried and self._compiles(schedule)
        return self._known[schedule]

    def _compiles(self, schedule: LayerSchedule) -> bool:
        candidate = self.task.with_layers({self.name: schedule}, Writer.name, "")
        try:
            self.task.prepared.network(candidate.schedule)
        except InputError:
            return False
        return True


def fields_of(layer: Layer) -> tuple[str, ...]:
    """Fields of a layer's schedule that may be changed."""
    if not isinstance(layer, (ConvLayer, DepthwiseLayer)):
        return _PLAIN
    no_scale = () if layer.drain.common_scale else ("common_scale",)
    return tuple(name for name in SPANS if name not in (*_KEPT, *no_scale))


def subjects_of(task: Task) -> dict[str, Subject]:
    """The layers that a task is about, the slowest first."""
    found: dict[str, Subject] = {}
    config, dram = task.prepared.config, task.conditions.dram
    cycles: dict[str, int] = {}
    for stage in task.prepared.lowered(task.schedule.fusions):
        for layer, spot in zip(stage.layers, spots_of(config, stage, dram), strict=True):
            if layer.name in task.layers:
                entry = task.measured.of(layer.name)
                found[layer.name] = Subject(layer, spot, task.schedule.layers[layer.name], entry.where)
                cycles[layer.name] = entry.cycles
    return dict(sorted(found.items(), key=lambda each: -cycles[each[0]]))
