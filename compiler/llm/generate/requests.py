"""Requests to the language model: prompt, answer grammar, and conversion of answers to candidates."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from functools import cached_property

from compiler.layers.base import Layer
from compiler.layers.conv.layer import ConvLayer
from compiler.layers.conv_transpose import ConvTransposeLayer
from compiler.layers.depthwise import DepthwiseLayer
from compiler.layers.matmul import MatmulLayer
from compiler.layers.pool import PoolLayer
from compiler.layers.reduce import ReduceLayer
from compiler.llm.generate.known_layers import read_known_layers
from compiler.llm.generate.sampler import EditsGrammar, TokenGrammar
from compiler.llm.tokens.layer_prompt import BEST, Ask, Programs, PromptSubject
from compiler.llm.tokens.program_edits import decode_edits
from compiler.llm.tokens.schedule_delta import SPANS, ScheduleDeltaGrammar, decode_schedule_delta
from compiler.runtime.program_text import program_text
from compiler.schedule.schedule import LayerSchedule
from compiler.tuning.edits.editable_programs import EditableProgram
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
    ConvTransposeLayer: (
        "order",
        "w_buffers",
        "acc_buffers",
        "param_blocks",
        "param_buffers",
        "pixels_per_pass",
    ),
}
#: Schedule fields that the model does not choose, because they require a fusion of two layers.
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
