"""PReLU as three passes of FUSE over a tile: what is not above zero, what is not below it, and their sum."""

from collections.abc import Hashable

import numpy as np

from compiler.codegen.build import Context, Tiles, Turns
from compiler.codegen.command import Command, Memory, Ref, Ring, Step
from compiler.codegen.elementwise import ElementwiseSteps
from compiler.kernels.scaling import bytes_word, halves_word, quantize_multiplier
from compiler.lower.prelu import PReluLayer
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE
from hw.isa.enums import DTYPE_BYTES, BSource, Dtype, Op, Requant, Unit

_MOST = (1 << 15) - 1
#: A multiplier that changes nothing.
_ONE, _ONE_EXPONENT = quantize_multiplier(1.0)


class PReluSteps(ElementwiseSteps):
    """The steps of a PReLU: tiles of pixels with all their channels, and the slopes beside them."""

    def __init__(self, context: Context, layer: PReluLayer):
        super().__init__(context, layer)
        self.prelu = layer
        self.line = self.blocks * self.n
        self.each = layer.slopes.ndim == 2  # each element has its own
        padded = np.zeros((*layer.slopes.shape[:-1], self.line), layer.slopes.dtype)
        padded[..., : layer.slopes.shape[-1]] = layer.slopes
        self.source = context.constant(f"{layer.name}.slopes", padded.reshape(-1))
        held, turns = (self.rows, context.schedule.x_buffers) if self.each else (1, 1)
        self.slopes = Tiles(
            Ring(Memory.SP, f"{layer.name}.slopes", held * self.line, turns), self._load_slopes
        )
        size = self.rows * self.line
        self.low = Turns(Memory.SP, f"{layer.name}.low", size, context.schedule.y_buffers)
        self.high = Turns(
            Memory.SP, f"{layer.name}.high", size * DTYPE_BYTES[Dtype.I16], context.schedule.y_buffers
        )

    def _by_channel(self) -> bool:
        return True

    def _load_slopes(self, key: Hashable, place: Ref) -> list[Command]:
        start, count = key  # type: ignore[misc]
        source = Ref(self.source).plus(start * self.line)
        return [self.context.command(Unit.LOAD, dram=source, dst=place, len=count * self.line)]

    def _commands(self, fields: dict[str, int | Ref], step: Step, start: int, count: int) -> list[Command]:
        """Both halves go to places of whole blocks: one of them is zero wherever the other is not."""
        layer, n, line = self.prelu, self.n, self.line
        dtype, wide = layer.shapes[layer.x].dtype, DTYPE_BYTES[Dtype.I16]
        low, high, result = self.low.next(), self.high.next(), layer.shapes[layer.y].dtype
        tail = FUSE_DIMS.index("n")
        below = fields | {
            "src": FUSE_SRC.pack(a_src=1, a_dtype=dtype),
            "stage": FUSE_STAGE.pack(d_dst=1, d_dtype=dtype, tail_dim=tail),
            "clip_hi": layer.x_zp, "d_base": low, "d_x": line, "d_n": n,
        }  # fmt: skip
        above = fields | {
            "src": FUSE_SRC.pack(a_src=1, a_dtype=dtype, requant=Requant.IMM, rounding=layer.rounding),
            "stage": FUSE_STAGE.pack(d_dst=1, d_dtype=Dtype.I16, tail_dim=tail),
            "zp_ab": halves_word(layer.x_zp, 0), "mult": layer.positive[0],
            "shifts": bytes_word(layer.positive[1]), "clip_lo": 0, "clip_hi": _MOST,
            "d_base": high, "d_x": line * wide, "d_n": n * wide,
        }  # fmt: skip
        both = fields | {
            "src": FUSE_SRC.pack(
                a_src=1, a_dtype=dtype, b_src=BSource.SP, b_dtype=layer.slope_dtype, op=Op.MUL,
                requant=Requant.IMM, rounding=layer.rounding,
            ),
            "stage": FUSE_STAGE.pack(
                residual=1, r_dtype=Dtype.I16, r_ls=0, d_dst=1, d_dtype=result, tail_dim=tail
            ),
            "zp_ab": halves_word(layer.x_zp, layer.slope_zp), "a_base": low, "a_v": line, "a_n": n,
            "b_base": self.slopes.get((start, count) if self.each else (0, 1), step),
            "b_x": self.line if self.each else 0, "b_n": n, "mult": layer.negative[0],
            "shifts": bytes_word(layer.negative[1]), "clip_lo": -_MOST, "clip_hi": _MOST,
            "r_base": high, "r_x": line * wide, "r_n": n * wide, "x_mult": _ONE, "r_mult": _ONE, "o_mult": _ONE,
            "r_shifts": bytes_word(*[_ONE_EXPONENT] * 3), "o_zp": layer.y_zp, "r_lo": layer.clip[0],
            "r_hi": layer.clip[1],
        }  # fmt: skip
        return [self.context.command(Unit.FUSE, **each) for each in (below, above, both)]


def prelu_steps(context: Context, layer: PReluLayer) -> list[Step]:
    """The steps of a PReLU."""
    return PReluSteps(context, layer).steps()
