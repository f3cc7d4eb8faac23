"""Prompts about layers and programs of a network: hardware, layer, schedule, cycles, requested cycles."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from math import log2

from compiler.initial_schedule.initial import tiling_contexts
from compiler.layers.base import Layer
from compiler.layers.conv.layer import ConvLayer
from compiler.layers.depthwise import DepthwiseLayer
from compiler.layers.matmul import MatmulLayer
from compiler.layers.registry import LAYER_KINDS, kind_of
from compiler.layers.tiling_context import TilingContext
from compiler.llm.tokens.integer_tokens import encode_number
from compiler.llm.tokens.program_tokens import summary_tokens
from compiler.llm.tokens.schedule_delta import NEXT_LAYER, ONE_PASS, encode_schedule_delta
from compiler.profile.measurement import Rejected
from compiler.schedule.schedule import LayerSchedule
from compiler.tuning.edits.editable_programs import EditableProgram, EditablePrograms
from compiler.tuning.generators.generator import GeneratorTask
from compiler.validate.errors import KINDS
from hw.errors import InputError
from hw.isa.counters import CAUSES
from hw.isa.enums import DTYPE_BYTES


class Ask(StrEnum):
    """Answer type that a prompt can request."""

    SCHEDULE = "ask schedule"
    EDITS = "ask edits"
    PROGRAM = "ask program"
    FUSION = "ask fusion"


#: Measurement stages at which a candidate may fail, and outcomes of measured candidates that are not improvements.
_STAGES = ("compile", "time", "trap", "same")
#: Rejection tokens by cause; each error kind of the validator has its own token.
REJECTIONS = {cause: f"rejected {cause}" for cause in (*_STAGES, *KINDS)}
PROMPT_TOKENS = (Ask.SCHEDULE.value, Ask.EDITS.value, Ask.PROGRAM.value, *REJECTIONS.values())
#: Part of the message about programs that exceed the instruction store.
_TOO_LONG = "the store has"


def rejected(result: Rejected) -> str:
    """Return the rejection token of a candidate."""
    if result.stage == "validate":
        # The message of a ValidationError contains the error kind after the location.
        kinds = (kind for kind in KINDS if f": {kind}: " in result.reason)
        return REJECTIONS[next(kinds, "compile")]
    return REJECTIONS.get(result.stage, REJECTIONS["compile"])


def refused(error: InputError | ValueError) -> str:
    """Return the rejection token of a candidate that does not compile."""
    return REJECTIONS["size" if _TOO_LONG in str(error) else "compile"]


def chief(layers: Sequence[Layer]) -> Layer:
    """Return the main layer of a program: the first one with the maximum number of MACs."""
    return max(layers, key=lambda layer: layer.macs)


#: Logarithmic encoding of sizes: number of levels per doubling, and maximum level.
_STEPS_PER_DOUBLING, _MAX_LEVEL = 3, 96
#: Number of steps in which the fraction of a cause in the cycles is encoded.
_COST_PARTS = 32
#: Target tokens: upper bounds of the ratio of requested to current cycles.
WANTED = (0.7, 0.8, 0.87, 0.92, 0.95, 0.97, 0.985, 0.995, 1.005, 1.02, 1.05, 1.1, 1.2, 1.5)
#: Target token for the lowest achievable cycles.
BEST = "want best"
ANSWER = "answer"
#: Token before each known schedule, which is among the best of a similar layer.
KNOWN = "known"
#: Tokens that were added to the vocabulary later, in two steps.
ADDED_TOKENS = (KNOWN,)
FUSION_TOKENS = (Ask.FUSION.value, ONE_PASS)

_FLAGS = ("x on chip", "y on chip", "residual", "table", "one scale")
_DEFAULT = LayerSchedule()
TOKENS = (
    "machine",
    "layer",
    "now",
    "cost",
    ANSWER,
    *dict.fromkeys(kind.word for kind in LAYER_KINDS),
    *_FLAGS,
    *(f"level {each}" for each in range(_MAX_LEVEL + 1)),
    *(f"cause {cause}" for cause in CAUSES),
    *(f"part {each}" for each in range(1, _COST_PARTS + 1)),
    *(f"want {number}" for number in range(len(WANTED) + 1)),
    BEST,
)


@dataclass(frozen=True, eq=False)
class PromptSubject:
    """Description of a layer in its network, from which prompts are generated.

    Parameters
    ----------
    layer : Layer
        Layer to describe.
    spot : TilingContext
        Hardware configuration, available memory and tensor locations of the layer.
    schedule : LayerSchedule
        Current schedule of the layer.
    where : dict
        Current cycles by cause.
    known : tuple of LayerSchedule
        Best known schedules of similar layers, nearest first.
    """

    layer: Layer
    spot: TilingContext
    schedule: LayerSchedule
    where: Mapping[str, int]
    known: tuple[LayerSchedule, ...] = ()

    def tokens(
        self,
        want: str,
        *,
        profile: bool = True,
        ask: Ask = Ask.SCHEDULE,
        summary: Sequence[str] = (),
        rejected: Sequence[str] = (),
    ) -> list[str]:
        """Return the tokens of a prompt.

        Parameters
        ----------
        want : str
            Token that requests a reduction of cycles, from `want_of` or `BEST`.
        profile : bool
            True to include the current cost.
        ask : Ask
            Type of the requested answer.
        summary : sequence of str
            Summary of the program that the prompt describes, from `summary_tokens`.
        rejected : sequence of str
            Reasons why earlier answers were rejected (`compiler.llm.tokens.layer_prompt`).

        Raises
        ------
        ValueError
            A size cannot be expressed as tokens.
        """
        known = [
            token for each in self.known for token in (KNOWN, *encode_schedule_delta(each, self.schedule))
        ]
        return [
            *self.machine(),
            *self.described(profile=profile),
            *summary,
            *(known if ask is Ask.SCHEDULE else []),
            *rejected,
            ask,
            want,
            ANSWER,
        ]

    def machine(self) -> list[str]:
        """Return the tokens of lanes, free memory, latency and bandwidth, and of the tensors that stay on the chip."""
        spot = self.spot
        flags = [flag for flag, on in zip(_FLAGS, (spot.x_on_chip, spot.y_on_chip), strict=False) if on]
        numbers = (spot.free, spot.acc_rows, spot.dram.latency, 16 * spot.beat)
        return ["machine", *encode_number(spot.config.n), *(_level(each) for each in numbers), *flags]

    def described(self, *, profile: bool = True) -> list[str]:
        """Return the tokens of the layer, of its schedule, and with `profile` of its cost."""
        now = encode_schedule_delta(self.schedule, _DEFAULT)
        cost = self._cost() if profile else []
        return [NEXT_LAYER, *self._layer(), "now", *now, "cost", *cost]

    @property
    def word(self) -> str:
        """Word of the layer's kind."""
        return kind_of(self.layer).word

    @property
    def sizes(self) -> list[int]:
        """Sizes of the layer: input, output, kernel, strides, groups; for products, rows, columns and depth twice."""
        layer = self.layer
        x, y = layer.shapes[layer.x], layer.shapes[layer.y]
        kernel = getattr(layer, "kernel", (1, 1))
        if isinstance(layer, (ConvLayer, DepthwiseLayer)):
            shape = layer.weights.shape
            kernel = shape[1:3] if isinstance(layer, ConvLayer) else shape[:2]
        ends = [x.h, x.w, x.c, y.h, y.w, y.c]
        if isinstance(layer, MatmulLayer):
            ends = [*layer.size, *layer.size]
        return [*ends, *kernel, *getattr(layer, "strides", (1, 1)), getattr(layer, "groups", 1)]

    def _layer(self) -> list[str]:
        layer, n = self.layer, self.spot.config.n
        x, y = layer.shapes[layer.x], layer.shapes[layer.y]
        drain = getattr(layer, "drain", None)
        weights = layer.weights if isinstance(layer, (ConvLayer, DepthwiseLayer)) else None
        flags = (
            drain is not None and drain.residual is not None,
            getattr(drain or layer, "table", None) is not None,
            drain is not None and drain.common_scale,
        )
        bytes_ = tuple(image.h * image.w * image.c * DTYPE_BYTES[image.dtype] for image in (x, y))
        parameters = 0 if weights is None else weights.size
        described = LayerSizes(tuple(self.sizes), flags, bytes_, parameters, layer.macs)
        return layer_tokens(self.word, described, n)

    def _cost(self) -> list[str]:
        cycles = sum(self.where.values())
        parts = {cause: round(_COST_PARTS * self.where.get(cause, 0) / max(cycles, 1)) for cause in CAUSES}
        shown = [
            token for cause, part in parts.items() if part for token in (f"cause {cause}", f"part {part}")
        ]
        return [*encode_number(cycles), *shown]


def pair_tokens(
    first: PromptSubject,
    second: PromptSubject,
    want: str,
    *,
    profile: bool = True,
    rejected: Sequence[str] = (),
) -> list[str]:
    """Return the tokens of a prompt about a layer and a layer that reads its result.

    Parameters
    ----------
    first, second : PromptSubject
        Descriptions of both layers.
    want, profile, rejected : str, bool, sequence of str
        As in `PromptSubject.tokens`.

    Raises
    ------
    ValueError
        A size cannot be expressed as tokens.
    """
    parts = first.described(profile=profile), second.described(profile=profile)
    return [*first.machine(), *parts[0], *parts[1], *rejected, Ask.FUSION, want, ANSWER]


@dataclass(frozen=True)
class LayerSizes:
    """Sizes and properties of a layer in a prompt.

    Parameters
    ----------
    sizes : tuple of int
        Height, width and channels of input and output (for products of matrices, rows, inner size and columns, twice),
        height and width of kernel and stride, and groups.
    flags : tuple of bool
        True if another tensor is added, if a lookup table follows, and if all channels have one scale.
    bytes_ : tuple of int
        Bytes of input and output.
    parameters : int
        Number of weights, 0 without weights.
    macs : int
        Number of multiply-accumulates.
    """

    sizes: tuple[int, ...]
    flags: tuple[bool, ...]
    bytes_: tuple[int, ...]
    parameters: int
    macs: int


def layer_tokens(word: str, layer: LayerSizes, n: int) -> list[str]:
    """Return the tokens that describe a layer in a prompt.

    Parameters
    ----------
    word : str
        Word of the layer kind.
    layer : LayerSizes
        Sizes of the layer.
    n : int
        Number of lanes.
    """
    levels = (*layer.bytes_, layer.parameters, layer.macs / n**2)
    return [
        word,
        *(token for size in layer.sizes for token in encode_number(size)),
        *(flag for flag, on in zip(_FLAGS[2:], layer.flags, strict=True) if on),
        *(_level(each) for each in levels),
    ]


def want_of(ratio: float) -> str:
    """Return the token that requests a ratio of the new to the current cycles."""
    return f"want {next((number for number, maximum in enumerate(WANTED) if ratio <= maximum), len(WANTED))}"


def _level(value: float) -> str:
    return f"level {min(round(_STEPS_PER_DOUBLING * log2(1 + value)), _MAX_LEVEL)}"


def subjects_of(task: GeneratorTask) -> dict[str, PromptSubject]:
    """Return the prompt subjects of a task's layers by name, slowest first."""
    found: dict[str, PromptSubject] = {}
    cycles: dict[str, int] = {}
    for name, (layer, spot) in _placed(task).items():
        if name in task.layers:
            entry = task.measured.layer_entry(name)
            found[name] = PromptSubject(layer, spot, task.schedule.layers[name], entry.where)
            cycles[name] = entry.cycles
    return dict(sorted(found.items(), key=lambda each: -cycles[each[0]]))


def _placed(task: GeneratorTask) -> dict[str, tuple[Layer, TilingContext]]:
    """Return all layers with their tiling contexts."""
    config, dram = task.prepared.config, task.conditions.dram
    return {
        layer.name: (layer, spot)
        for stage in task.prepared.lowered(task.schedule.fusions)
        for layer, spot in zip(stage.layers, tiling_contexts(config, stage, dram), strict=True)
    }


@dataclass(eq=False)
class Programs:
    """Editable programs of a task.

    Parameters
    ----------
    task : GeneratorTask
        Task whose current programs are edited, including programs given as text.
    measured : bool
        True if the measurement of the task belongs to its current schedule.
    """

    task: GeneratorTask
    measured: bool = True

    @cached_property
    def editable(self) -> EditablePrograms:
        """Builder of edited programs."""
        return EditablePrograms(self.task.network)

    @cached_property
    def programs(self) -> list[EditableProgram]:
        """Programs that contain layers of the task, slowest first."""
        found = [each for each in self.editable.programs if set(each.layers) & set(self.task.layers)]
        found = [each for each in found if each.unrolled.commands]
        return sorted(found, key=lambda each: -each.cycles(self.task.measured)) if self.measured else found

    def subject(self, piece: EditableProgram) -> PromptSubject:
        """Return the prompt subject of a program: its main layer, with the cycles of the program."""
        named: Mapping[str, tuple[Layer, TilingContext]] = self._placed
        layer = chief([named[name][0] for name in piece.layers])
        return PromptSubject(*named[layer.name], self.task.schedule.layers[layer.name], self._where(piece))

    def summary(self, piece: EditableProgram) -> list[str]:
        """Return the summary tokens of a program."""
        return summary_tokens(piece.unrolled.commands, self.editable.config.n)

    @cached_property
    def _placed(self) -> dict[str, tuple[Layer, TilingContext]]:
        return _placed(self.task)

    def _where(self, piece: EditableProgram) -> dict[str, int]:
        if not self.measured:
            return {}
        entries = [each for each in self.task.measured.layers if set(piece.layers) & set(each.names)]
        return {cause: sum(each.where.get(cause, 0) for each in entries) for cause in CAUSES}
