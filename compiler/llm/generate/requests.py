"""What is asked of the language model: a question, what may be answered, and the candidate that an answer is."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from functools import cached_property

from compiler.layers.base import Layer
from compiler.layers.conv.layer import ConvLayer
from compiler.layers.depthwise import DepthwiseLayer
from compiler.llm.decode.edits_grammar import EditsGrammar
from compiler.llm.decode.sampler import TokenGrammar
from compiler.llm.tokens.layer_prompt import BEST, Programs, PromptSubject
from compiler.llm.tokens.program_edits import edits_of
from compiler.llm.tokens.prompt_tokens import Ask
from compiler.llm.tokens.schedule_delta import SPANS, ChangesGrammar, with_changes
from compiler.runtime.program_text import program_text
from compiler.schedule.schedule import LayerSchedule
from compiler.tuning.edits.editable_programs import EditableProgram
from compiler.tuning.generators.task import Candidate, GeneratorTask
from hw.errors import InputError

#: Who proposes.
NAME = "llm"
#: What is chosen for layers without kernels.
_PLAIN = (
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
#: What is not the model's to choose: planes need a fusion of two layers, and some of the others the whole network.
_KEPT = ("stream_channel_blocks",)


class LmRequest(ABC):
    """Something that is asked, as often as wanted.

    Attributes
    ----------
    ask : Ask
        Which kind of answer is wanted.
    about : str
        The layer's name, or the program's.
    tried : set
        What answers say (`meaning`) that are of no use any more.
    fallback : Candidate or None
        What is proposed in place of answers that are refused again and again; None: nothing, there is a program.
    """

    ask: Ask
    #: Answers drawn at a time.
    together = 16

    def __init__(self, about: str, fallback: Candidate | None = None):
        self.about, self.fallback = about, fallback
        self.tried: set[Hashable] = set()

    @cached_property
    def grammar(self) -> TokenGrammar | None:
        """What may be answered; None: there is nothing to choose."""
        return self._grammar()

    @abstractmethod
    def _grammar(self) -> TokenGrammar | None: ...

    @abstractmethod
    def question(self, rejected: Sequence[str] = (), *, profile: bool = True) -> list[str]:
        """Words of the question; ValueError: a size has none.

        Parameters
        ----------
        rejected : sequence of str
            Why earlier answers were refused.
        profile : bool
            With what it costs now.
        """

    @abstractmethod
    def meaning(self, words: Sequence[str]) -> Hashable:
        """What an answer says: equal for those that say the same. ValueError: it is none."""

    @abstractmethod
    def candidate(self, words: Sequence[str]) -> Candidate:
        """What an answer proposes.

        Raises
        ------
        InputError, ValueError
            It is none, or one that cannot be made.
        """


class Schedules(LmRequest):
    """A layer's schedule.

    Parameters
    ----------
    task : Task
        The network.
    name : str
        The layer's.
    subject : Subject
        The layer.
    fitting : bool
        Whether answers end only if they can be compiled; if not, that is to be found out later.
    """

    ask = Ask.SCHEDULE

    def __init__(self, task: GeneratorTask, name: str, subject: PromptSubject, *, fitting: bool = True):
        super().__init__(name)
        self.task, self.subject, self.fitting = task, subject, fitting
        self.tried.add(subject.schedule)
        self._digests: dict[LayerSchedule, str | None] = {}

    def _grammar(self) -> TokenGrammar:
        """Changes of which those end that were not tried, and can be compiled if they are to fit."""
        return _Fitting(self)

    def question(self, rejected: Sequence[str] = (), *, profile: bool = True) -> list[str]:
        """About the layer."""
        return self.subject.words(BEST, profile=profile, rejected=rejected)

    def meaning(self, words: Sequence[str]) -> LayerSchedule:
        """The schedule."""
        return with_changes(words, self.subject.schedule)

    def candidate(self, words: Sequence[str]) -> Candidate:
        """The network with it."""
        return self._with(self.meaning(words), " ".join(words[:-1]))

    def digest(self, schedule: LayerSchedule) -> str | None:
        """Of the network with a schedule; None: it cannot be compiled."""
        if schedule not in self._digests:
            try:
                network = self.task.prepared.network(self._with(schedule).schedule)
                self._digests[schedule] = network.digest
            except InputError:
                self._digests[schedule] = None
        return self._digests[schedule]

    def _with(self, schedule: LayerSchedule, why: str = "") -> Candidate:
        return self.task.with_layers({self.about: schedule}, NAME, f"{self.about}: {why}")


class _Fitting:
    """The grammar of changes of a layer's schedule."""

    def __init__(self, request: Schedules):
        self.request = request
        self._changes = ChangesGrammar(fields_of(request.subject.layer))

    def after(self, words: Sequence[str]) -> Sequence[str]:
        """Words that may follow."""
        return self._changes.after(words)

    def ends(self, words: Sequence[str]) -> bool:
        """Whether a complete answer is one that is wanted."""
        request = self.request
        schedule = request.meaning(words)
        if schedule in request.tried:
            return False
        return not request.fitting or request.digest(schedule) is not None


class Edits(LmRequest):
    """Edits of a program.

    Parameters
    ----------
    programs : Programs
        Those of a task.
    piece : Piece
        The program.
    fallback : Candidate or None
        As for `Request`.
    """

    ask = Ask.EDITS

    def __init__(self, programs: Programs, piece: EditableProgram, fallback: Candidate | None = None):
        super().__init__(piece.name, fallback)
        self.programs, self.piece = programs, piece

    def _grammar(self) -> TokenGrammar | None:
        """Edits that the program allows and that were not tried."""
        config = self.programs.workshop.config
        grammar = EditsGrammar(config, self.piece.unrolled.commands, self.tried)
        return grammar if grammar.any else None

    def question(self, rejected: Sequence[str] = (), *, profile: bool = True) -> list[str]:
        """About the program; without its cycles if they are not known."""
        programs, piece = self.programs, self.piece
        return programs.subject(piece).words(
            BEST,
            profile=profile and programs.measured,
            ask=self.ask,
            outline=programs.outline(piece),
            rejected=rejected,
        )

    def meaning(self, words: Sequence[str]) -> Hashable:
        """The edits."""
        return edits_of(words)

    def candidate(self, words: Sequence[str]) -> Candidate:
        """The network with all programs that are others after them."""
        changed = self.programs.workshop.changed({self.about: edits_of(words)})
        texts = {new.name: program_text(new) for _, new in changed}
        return self.programs.task.with_texts(texts, NAME, f"{self.about}: {' '.join(words[:-1])}")


def fields_of(layer: Layer) -> tuple[str, ...]:
    """Fields of a layer's schedule that may be changed."""
    if not isinstance(layer, (ConvLayer, DepthwiseLayer)):
        return _PLAIN
    no_scale = () if layer.drain.common_scale else ("common_scale",)
    return tuple(name for name in SPANS if name not in (*_KEPT, *no_scale))
