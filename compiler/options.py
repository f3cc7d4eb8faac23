"""What a compiled network depends on beside the model and the machine."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from compiler.ir.identity import identity
from compiler.limits import NONE, Limits
from compiler.schedule.dram import USUAL, Dram
from compiler.schedule.schedule import Schedule

if TYPE_CHECKING:
    from compiler.quantize.samples import Calibration

#: Whose rounding: LiteRT's reference kernels, its default ones (XNNPACK), onnxruntime.
ROUNDINGS = ("reference", "xnnpack", "onnxruntime")


@identity(
    "Options", "rounding", "schedule", "strict", "calibration", "seed", "offset", "batch", "batches", "skip", "keep_float", "single",
    "dram", "limits",
)  # fmt: skip
@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `compiler.api.compile` that decide what comes out of it, as they are explained there.

    With `single` each stage is one program.
    """

    rounding: str
    schedule: Schedule | None = None
    strict: bool = False
    calibration: "Calibration | None" = None
    seed: int = 0
    offset: int = 0
    batch: int = 1
    batches: tuple[int, ...] = ()
    skip: str | None = None
    keep_float: tuple[str, ...] = ()
    single: bool = False
    dram: Dram = USUAL
    limits: Limits = NONE
