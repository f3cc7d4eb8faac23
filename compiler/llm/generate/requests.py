"""Requests to the language model: prompt, answer grammar, and conversion of answers to candidates."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Sequence
from functools import cached_property

from compiler.layers.base import Layer
from compiler.layers.conv.layer import ConvLayer
from compiler.layers.conv_transpose import ConvTransposeLayer
from compiler.layers.depthwise import DepthwiseLayer
from compiler.layers.matmul import MatmulLayer
from compiler.layers.pool import PoolLayer
from compiler.layers.reduce import ReduceLayer
from compiler.layers.resize_runs import ResizeLayer
from compiler.llm.generate.known_layers import read_known_layers
from compiler.llm.generate.sampler import EditsGrammar, TokenGrammar
from compiler.llm.tokens.layer_prompt import BEST, Ask, Programs, PromptSubject, pair_tokens, subjects_of
from compiler.llm.tokens.program_tokens import decode_edits
from compiler.llm.tokens.schedule_delta import (
    SPANS,
    PairDeltaGrammar,
    ScheduleDeltaGrammar,
    decode_pair_delta,
    decode_schedule_delta,
)
from compiler.runtime.program_text import program_text
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning.edits.editable_programs import EditableProgram
from compiler.tuning.epilogue_chains import merge, retile
from compiler.tuning.fusion_engine import FusionKind, fusion_opportunities
from compiler.tuning.generators.generator import Candidate, GeneratorTask
from hw.errors import InputError

#: Generator name in candidates.
NAME = "llm"
#: Schedule fields of layers without kernels.
_COMMON_FIELDS = (
    "rows",
    "columns",
    "depth",
    "x_buffers",
    "y_buffers",
    "prefetch",
    "on_chip",
    "interleave",
    "same_program_as_previous",
    "own_counter_tag",
)
#: Further fields of such layers by class.
_FIELDS_OF = {
    MatmulLayer: ("order", "w_buffers", "acc_buffers"),
    PoolLayer: ("strip_width",),
    ReduceLayer: ("acc_buffers",),
    ResizeLayer: ("acc_buffers", "rows_per_load", "strip_width"),
    ConvTransposeLayer: (
        "order",
        "w_buffers",
        "acc_buffers",
        "param_blocks",
        "param_buffers",
        "pixels_per_pass",
    ),
}
#: Schedule fields that are not part of answers about one layer, because they require a fusion of two layers.
_EXCLUDED_FIELDS = ("stream_channel_blocks",)


class LmRequest(ABC):
    """Request to the language model, which may be repeated to obtain further answers.

    Attributes
    ----------
    ask : Ask
        Type of the requested answer.
    about : str
        Name of the layer or program.
    tried : set
        Results of `meaning` for earlier answers, which are excluded from further answers.
    fallback : Candidate or None
        Candidate that is proposed after repeated rejections, if any.
    """

    ask: Ask
    #: Number of answers sampled at a time.
    answers_per_draw = 16

    def __init__(self, about: str, fallback: Candidate | None = None):
        self.about, self.fallback = about, fallback
        self.tried: set[Hashable] = set()

    @cached_property
    def grammar(self) -> TokenGrammar | None:
        """Grammar of the answers; None if there is no valid answer."""
        return self._grammar()

    @abstractmethod
    def _grammar(self) -> TokenGrammar | None: ...

    @abstractmethod
    def prompt(self, rejected: Sequence[str] = (), *, profile: bool = True) -> list[str]:
        """Return the tokens of the prompt; raise ValueError if a size cannot be expressed as tokens.

        Parameters
        ----------
        rejected : sequence of str
            Tokens of the reasons why earlier answers were rejected.
        profile : bool
            True to include the current cost.
        """

    @abstractmethod
    def meaning(self, tokens: Sequence[str]) -> Hashable:
        """Return a value that is equal for equivalent answers; raise ValueError if the answer is invalid."""

    @abstractmethod
    def candidate(self, tokens: Sequence[str]) -> Candidate:
        """Return the candidate that an answer describes.

        Raises
        ------
        InputError, ValueError
            The answer is invalid, or the candidate cannot be built.
        """


class Schedules(LmRequest):
    """Request for the schedule of a layer.

    Parameters
    ----------
    task : GeneratorTask
        Network and its current schedule.
    name : str
        Name of the layer.
    subject : PromptSubject
        Prompt description of the layer.
    fitting : bool
        True to accept only answers whose schedule compiles; False if the caller checks later whether it compiles.
    known : int
        Number of known schedules of similar layers in the prompt.
    """

    ask = Ask.SCHEDULE

    def __init__(
        self, task: GeneratorTask, name: str, subject: PromptSubject, *, fitting: bool = True, known: int = 0
    ):
        super().__init__(name)
        self.task, self.fitting = task, fitting
        self.subject = read_known_layers().with_known(subject, known) if known else subject
        self.tried.add(subject.schedule)
        self._digests: dict[LayerSchedule, str | None] = {}

    def _grammar(self) -> TokenGrammar:
        """Return the grammar of schedule deltas that are new and, if `fitting`, compile."""
        return _ScheduleGrammar(self)

    def prompt(self, rejected: Sequence[str] = (), *, profile: bool = True) -> list[str]:
        """Return the prompt about the layer."""
        return self.subject.tokens(BEST, profile=profile, rejected=rejected)

    def meaning(self, tokens: Sequence[str]) -> LayerSchedule:
        """Return the layer schedule of an answer."""
        return decode_schedule_delta(tokens, self.subject.schedule)

    def candidate(self, tokens: Sequence[str]) -> Candidate:
        """Return the candidate with the schedule of an answer."""
        return self._with(self.meaning(tokens), " ".join(tokens[:-1]))

    def digest(self, schedule: LayerSchedule) -> str | None:
        """Return the digest of the network with a layer schedule; None if it does not compile."""
        if schedule not in self._digests:
            try:
                network = self.task.prepared.network(self._with(schedule).schedule)
                self._digests[schedule] = network.digest
            except InputError:
                self._digests[schedule] = None
        return self._digests[schedule]

    def _with(self, schedule: LayerSchedule, description: str = "") -> Candidate:
        return self.task.with_layers({self.about: schedule}, NAME, f"{self.about}: {description}")


class Fusion(LmRequest):
    """Request for the fusion of a layer and a layer that reads its result, with the schedules of both.

    An answer changes the schedules of both layers (place of the tensor between them, channel blocks, interleaving and
    program are fields of the schedules), or merges both into one layer, with changes to the schedule that the compiler
    gives it.

    Parameters
    ----------
    task : GeneratorTask
        Network and its current schedule.
    first, second : PromptSubject
        Prompt descriptions of both layers.
    kinds : collection of FusionKind
        Fusions of the layers that are possible.
    """

    ask = Ask.FUSION

    def __init__(
        self,
        task: GeneratorTask,
        first: PromptSubject,
        second: PromptSubject,
        kinds: Collection[FusionKind],
    ):
        self.names = first.layer.name, second.layer.name
        super().__init__(" and ".join(self.names))
        self.task, self.subjects, self.kinds = task, (first, second), frozenset(kinds)
        self.bases = first.schedule, second.schedule
        self.tried.add(self.bases)
        self._known: dict[tuple[LayerSchedule, ...], bool] = {}

    @cached_property
    def merged(self) -> tuple[Layer, Schedule] | None:
        """Layer into which both are merged, and the schedule of the network with it; None if that is not possible."""
        if FusionKind.CHAIN not in self.kinds:
            return None
        layers = [subject.layer for subject in self.subjects]
        prepared, nodes = self.task.prepared, (*layers[0].nodes, *layers[1].nodes)
        try:
            fusions = merge(self.task.schedule, *layers)
            schedule = retile(prepared, self.task.conditions, self.task.schedule, fusions)
        except InputError:  # a remaining layer does not fit the machine
            return None
        found = [
            layer for stage in prepared.lowered(fusions) for layer in stage.layers if layer.nodes == nodes
        ]
        return (found[0], schedule) if found else None

    def _grammar(self) -> "_FusionGrammar":
        return _FusionGrammar(self)

    def prompt(self, rejected: Sequence[str] = (), *, profile: bool = True) -> list[str]:
        """Return the prompt about both layers."""
        return pair_tokens(*self.subjects, BEST, profile=profile, rejected=rejected)

    def meaning(self, tokens: Sequence[str]) -> tuple[LayerSchedule, ...]:
        """Return the schedules of both layers, or of the merged layer alone."""
        merged = self.merged
        base = None if merged is None else merged[1].layers[merged[0].name]
        return decode_pair_delta(tokens, self.bases, base)

    def candidate(self, tokens: Sequence[str]) -> Candidate:
        """Return the candidate with the fusion of an answer."""
        return self._with(self.meaning(tokens), " ".join(tokens[:-1]))

    def compiles(self, schedules: tuple[LayerSchedule, ...]) -> bool:
        """Return whether the network compiles with the schedules of both layers, or of the merged layer."""
        if schedules not in self._known:
            try:
                self.task.prepared.network(self._with(schedules).schedule)
                self._known[schedules] = True
            except InputError:
                self._known[schedules] = False
        return self._known[schedules]

    def _with(self, schedules: tuple[LayerSchedule, ...], description: str = "") -> Candidate:
        description = f"{self.about}: {description}"
        if len(schedules) == 2:
            return self.task.with_layers(dict(zip(self.names, schedules, strict=True)), NAME, description)
        assert self.merged is not None
        layer, schedule = self.merged
        layers = schedule.layers | {layer.name: schedules[0]}
        return self.task.with_layers(layers, NAME, description, schedule.fusions)


class _FusionGrammar(PairDeltaGrammar):
    """Grammar of fusions; an answer ends only if it is new and compiles."""

    def __init__(self, request: Fusion):
        first, second = (fields_of(subject.layer) for subject in request.subjects)
        if FusionKind.CHANNEL_BLOCKS in request.kinds:
            first = tuple(name for name in SPANS if name in (*first, *_EXCLUDED_FIELDS))
        super().__init__(first, second, None if request.merged is None else fields_of(request.merged[0]))
        self.request = request

    def ends(self, tokens: Sequence[str]) -> bool:
        """Return whether a complete answer is accepted."""
        schedules = self.request.meaning(tokens)
        return schedules not in self.request.tried and self.request.compiles(schedules)


def fusion_requests(task: GeneratorTask) -> list[Fusion]:
    """Return a request for each pair of layers of a task that can be fused in some way, slowest pair first."""
    subjects = subjects_of(task)
    kinds: dict[tuple[str, ...], set[FusionKind]] = {}
    for each in fusion_opportunities(task.prepared, task.conditions, task.schedule):
        if each.possible and len(each.layers) == 2 and set(each.layers) <= subjects.keys():
            kinds.setdefault(each.layers, set()).add(each.kind)
    found = [Fusion(task, subjects[first], subjects[second], own) for (first, second), own in kinds.items()]
    return sorted(found, key=lambda each: -sum(sum(one.where.values()) for one in each.subjects))


class _ScheduleGrammar:
    """Grammar of schedule deltas; an answer ends only if its schedule is accepted."""

    def __init__(self, request: Schedules):
        self.request = request
        self._changes = ScheduleDeltaGrammar(fields_of(request.subject.layer))

    def after(self, tokens: Sequence[str]) -> Sequence[str]:
        """Return the tokens that may follow."""
        return self._changes.after(tokens)

    def ends(self, tokens: Sequence[str]) -> bool:
        """Return whether a complete answer is accepted."""
        request = self.request
        schedule = request.meaning(tokens)
        if schedule in request.tried:
            return False
        return not request.fitting or request.digest(schedule) is not None


class Edits(LmRequest):
    """Request for edits of a program.

    Parameters
    ----------
    programs : Programs
        Editable programs of a task.
    piece : EditableProgram
        Program to edit.
    fallback : Candidate or None
        Candidate that is proposed after repeated rejections, if any.
    """

    ask = Ask.EDITS

    def __init__(self, programs: Programs, piece: EditableProgram, fallback: Candidate | None = None):
        super().__init__(piece.name, fallback)
        self.programs, self.piece = programs, piece

    def _grammar(self) -> TokenGrammar | None:
        """Return the grammar of valid new edits; None if the program does not allow any edit."""
        config = self.programs.editable.config
        grammar = EditsGrammar(config, self.piece.unrolled.commands, self.tried)
        return grammar if grammar.satisfiable else None

    def prompt(self, rejected: Sequence[str] = (), *, profile: bool = True) -> list[str]:
        """Return the prompt about the program, without cycles if they are not known."""
        programs, piece = self.programs, self.piece
        return programs.subject(piece).tokens(
            BEST,
            profile=profile and programs.measured,
            ask=self.ask,
            summary=programs.summary(piece),
            rejected=rejected,
        )

    def meaning(self, tokens: Sequence[str]) -> Hashable:
        """Return the edits of an answer."""
        return decode_edits(tokens)

    def candidate(self, tokens: Sequence[str]) -> Candidate:
        """Return the candidate with all programs that the edits of an answer change."""
        changed = self.programs.editable.changed({self.about: decode_edits(tokens)})
        texts = {new.name: program_text(new) for _, new in changed}
        return self.programs.task.with_texts(texts, NAME, f"{self.about}: {' '.join(tokens[:-1])}")


def fields_of(layer: Layer) -> tuple[str, ...]:
    """Return the names of the schedule fields that may be changed for a layer."""
    if not isinstance(layer, (ConvLayer, DepthwiseLayer)):
        own = (*_COMMON_FIELDS, *_FIELDS_OF.get(type(layer), ()))
        return tuple(name for name in SPANS if name in own)
    no_scale = () if layer.drain.common_scale else ("common_scale",)
    return tuple(name for name in SPANS if name not in (*_EXCLUDED_FIELDS, *no_scale))
