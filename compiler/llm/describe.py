"""A layer as words: the machine, what is to be done, how it is done now, what that costs, what is wanted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2

from compiler.llm.asking import Ask
from compiler.llm.changes import changes_words
from compiler.llm.numbers import number_words
from compiler.lower.kinds import LAYER_KINDS, kind_of
from compiler.lower.layer import ConvLayer, DepthwiseLayer, Layer
from compiler.lower.matmul import MatmulLayer
from compiler.schedule.schedule import LayerSchedule
from compiler.schedule.spot import Spot
from hw.isa.counters import CAUSES
from hw.isa.enums import DTYPE_BYTES

#: Sizes whose order matters more than their digits: so many steps for each doubling.
_STEPS, _MOST_LEVEL = 3, 96
_PARTS = 32
#: What the cycles are to be over those there are now: at most this.
WANTED = (0.7, 0.8, 0.87, 0.92, 0.95, 0.97, 0.985, 0.995, 1.005, 1.02, 1.05, 1.1, 1.2, 1.5)
#: The least that can be had, whatever it is.
BEST = "want best"
ANSWER = "answer"

_FLAGS = ("x on chip", "y on chip", "residual", "table", "one scale")
_DEFAULT = LayerSchedule()
WORDS = (
    "machine", "layer", "now", "cost", ANSWER, *LAYER_KINDS.values(), *_FLAGS,
    *(f"level {each}" for each in range(_MOST_LEVEL + 1)),
    *(f"cause {cause}" for cause in CAUSES), *(f"part {each}" for each in range(1, _PARTS + 1)),
    *(f"want {number}" for number in range(len(WANTED) + 1)), BEST,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Subject:
    """A layer in its network.

    Parameters
    ----------
    layer : Layer
        What is to be done.
    spot : Spot
        What it finds: the machine, memory that is free, where its tensors are.
    schedule : LayerSchedule
        How it is done now.
    where : dict
        Its cycles by cause.
    """

    layer: Layer
    spot: Spot
    schedule: LayerSchedule
    where: Mapping[str, int]

    def words(
        self, want: str, *, profile: bool = True, ask: Ask = Ask.SCHEDULE, outline: Sequence[str] = (),
        rejected: Sequence[str] = (),
    ) -> list[str]:  # fmt: skip
        """All that an answer is asked for by.

        Parameters
        ----------
        want : str
            What its cycles are to be.
        profile : bool
            If not, nothing is said of what the layer costs now.
        ask : Ask
            Which answer is wanted.
        outline : sequence of str
            The program that is asked about, as `outline_words` gives it.
        rejected : sequence of str
            Why answers to the same question were refused (`compiler.llm.asking`).

        Raises
        ------
        ValueError
            A number of the schedule has no words.
        """
        cost = self._cost() if profile else []
        now = changes_words(self.schedule, _DEFAULT)
        return [
            "machine", *self._machine(), "layer", *self._layer(), "now", *now, "cost", *cost,
            *outline, *rejected, ask, want, ANSWER,
        ]  # fmt: skip

    def _machine(self) -> list[str]:
        spot = self.spot
        flags = [flag for flag, on in zip(_FLAGS, (spot.x_on_chip, spot.y_on_chip), strict=False) if on]
        numbers = (spot.free, spot.acc_rows, spot.dram.latency, 16 * spot.beat)
        return [*number_words(spot.config.n), *(_level(each) for each in numbers), *flags]

    def _layer(self) -> list[str]:
        layer, n = self.layer, self.spot.config.n
        x, y = layer.shapes[layer.x], layer.shapes[layer.y]
        drain = getattr(layer, "drain", None)
        weights = layer.weights if isinstance(layer, (ConvLayer, DepthwiseLayer)) else None
        kernel = getattr(layer, "kernel", (1, 1))
        if weights is not None:
            kernel = weights.shape[1:3] if isinstance(layer, ConvLayer) else weights.shape[:2]
        sizes = [
            x.h,
            x.w,
            x.c,
            y.h,
            y.w,
            y.c,
            *kernel,
            *getattr(layer, "strides", (1, 1)),
            getattr(layer, "groups", 1),
        ]
        if isinstance(layer, MatmulLayer):
            sizes[:6] = *layer.size, *layer.size
        flags = [
            (_FLAGS[2], drain is not None and drain.residual is not None),
            (_FLAGS[3], getattr(drain or layer, "table", None) is not None),
            (_FLAGS[4], drain is not None and drain.common_scale),
        ]
        bytes_ = [image.h * image.w * image.c * DTYPE_BYTES[image.dtype] for image in (x, y)]
        levels = [*bytes_, 0 if weights is None else weights.size, layer.macs / n**2]
        return [
            kind_of(layer), *(word for size in sizes for word in number_words(size)),
            *(flag for flag, on in flags if on), *(_level(each) for each in levels),
        ]  # fmt: skip

    def _cost(self) -> list[str]:
        cycles = sum(self.where.values())
        parts = {cause: round(_PARTS * self.where.get(cause, 0) / max(cycles, 1)) for cause in CAUSES}
        shown = [word for cause, part in parts.items() if part for word in (f"cause {cause}", f"part {part}")]
        return [*number_words(cycles), *shown]


def want_of(ratio: float) -> str:
    """What cycles of so many times those there are now are called."""
    return f"want {next((number for number, most in enumerate(WANTED) if ratio <= most), len(WANTED))}"


def _level(value: float) -> str:
    return f"level {min(round(_STEPS * log2(1 + value)), _MOST_LEVEL)}"
