"""Depthwise convolutions as commands: the stream mode of MATRIX (docs/machine.md)."""

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from compiler.codegen.build import Context, Tiles, Turns, image_rows, pieces
from compiler.codegen.command import Command, Memory, Ref, Ring, Step
from compiler.codegen.drain import Drainer
from compiler.codegen.parameters import parameters
from compiler.kernels.tiles import ceil_div
from compiler.lower.layer import DepthwiseLayer
from hw.config import MlaConfig
from hw.isa.commands import MATRIX_WORD
from hw.isa.enums import Dtype, Unit


def pack_depthwise(config: MlaConfig, weights: NDArray) -> NDArray[np.uint8]:
    """Weights (kernel_h, kernel_w, channels) as [block][kernel row][kernel column][N]."""
    n, channels = config.n, weights.shape[2]
    blocks = ceil_div(channels, n)
    padded = np.zeros((*weights.shape[:2], blocks * n), np.uint8)
    padded[:, :, :channels] = weights.view(np.uint8)
    return np.ascontiguousarray(padded.reshape(*weights.shape[:2], blocks, n).transpose(2, 0, 1, 3))


def kernel_rows(config: MlaConfig, layer: DepthwiseLayer, pitch: int) -> int:
    """Kernel rows of a pass, rows of `pitch` stream positions: as many as array and line buffers take."""
    kernel_h, taps, _ = layer.weights.shape
    for groups in range(min(kernel_h, config.n // taps, 3), 1, -1):
        if groups * pitch + 2 * taps <= config.line_depth:
            return groups
    return 1


def stream_passes(config: MlaConfig, layer: DepthwiseLayer, pitch: int) -> int:
    """Passes over an image: kernel rows as many as go together, kernel columns as many as the array has rows."""
    kernel_h, taps, _ = layer.weights.shape
    return ceil_div(kernel_h, kernel_rows(config, layer, pitch)) * ceil_div(taps, config.n)


def stream_pitch(layer: DepthwiseLayer, in_w: int, out_w: int, width: int) -> int:
    """Stream positions of a row for `width` of `out_w` output columns, padding on both sides included.

    All of a row and no more is streamed where that is all columns; else what the kernel comes to.
    """
    taps, stride, left = layer.weights.shape[1], layer.strides[1], layer.pads[1]
    needed = (width - 1) * stride + taps
    return max(needed, in_w + left) if width == out_w else needed


@dataclass(frozen=True)
class _Taps:
    """Kernel rows and columns of a pass: the first and how many."""

    row: int
    rows: int
    column: int
    columns: int


class DepthwiseSteps:
    """The steps of a depthwise convolution.

    Parameters
    ----------
    context : Context
        Where for.
    layer : DepthwiseLayer
        What.
    """

    def __init__(self, context: Context, layer: DepthwiseLayer):
        self.context, self.layer, self.config = context, layer, context.config
        self.images = [context.homes[name].parts(layer.batch) for name in (layer.x, layer.y)]
        self._turn_to(0)
        n, schedule = self.config.n, context.schedule
        self.kernel_h, self.taps, channels = layer.weights.shape
        self.channels, self.blocks = channels, ceil_div(channels, n)
        self.columns = min(schedule.columns, self.blocks)
        self.band = min(schedule.rows_per_load, self.y.h)
        self.rows = min(schedule.rows, self.band)
        #: First output column and how many: a tile has those of a strip.
        self.strips = list(pieces(self.y.w, schedule.width))
        self._enter(0)
        self.groups = kernel_rows(self.config, layer, self.pitch)
        self.passes = stream_passes(self.config, layer, self.pitch)
        self._rings()

    def _enter(self, strip: int) -> None:
        """Go on with this strip."""
        self.strip = strip
        self.column, self.width = self.strips[strip]
        self.pitch = stream_pitch(self.layer, self.x.w, self.y.w, self.width)

    def _turn_to(self, number: int) -> None:
        """Go on with this image of a batch."""
        self.number = number
        self.x, self.y = (images[number] for images in self.images)

    def _rings(self) -> None:
        layer, schedule, n = self.layer, self.context.schedule, self.config.n
        tiles = ceil_div(self.blocks, self.columns)
        self.w_block = self.kernel_h * self.taps * n
        self.w_dram = self.context.constant(
            f"{layer.name}.weights", pack_depthwise(self.config, layer.weights)
        )
        w_ring = Ring(
            Memory.SP, f"{layer.name}.w", self.columns * self.w_block, min(schedule.w_buffers, tiles)
        )
        self.w = Tiles(w_ring, self._load_w)
        self.p = parameters(self.context, layer.name, layer.drain, self.columns)
        self.acc = Turns(
            Memory.ACC, f"{layer.name}.acc", self.rows * self.width * self.columns, schedule.acc_buffers
        )
        self.drains = [
            Drainer(
                self.context, layer.name, layer.drain, [y.columns(column, width) for y in self.images[1]],
                self.rows, self.columns, column=column,
            )
            for column, width in self.strips
        ]  # fmt: skip
        self.x_pixel, self.x_row = self.x.pixel, self.x.row
        if not self.x.on_chip:
            self.x_pixel = min(self.columns * n, self.channels)
            self.x_row = self.x.w * self.x_pixel
            most = max(self._image(start, rows)[1] for start, rows in pieces(self.y.h, self.band))
            ring = Ring(Memory.SP, f"{layer.name}.x", most * self.x_row + n, schedule.x_buffers)
            self.x_tiles = Tiles(ring, self._load_x)

    def _image(self, start: int, rows: int) -> tuple[int, int]:
        layer = self.layer
        return image_rows(start, rows, layer.strides[0], layer.pads[0], self.kernel_h, self.x.h)

    def _load_x(self, key: Hashable, place: Ref) -> list[Command]:
        _, start, rows, block = key  # type: ignore[misc]
        first, count = self._image(start, rows)
        width = min(self.x_pixel, self.channels - block * self.config.n)
        lines = (
            {"len": count * self.x_row}
            if width == self.x.pixel
            else {
                "len": width,
                "y_count": count * self.x.w,
                "dram_y": self.x.pixel,
                "dst_y": self.x_pixel,
            }
        )
        source = self.x.at(first, 0, block * self.config.n)
        return [self.context.command(Unit.LOAD, dram=source, dst=place, **lines)]

    def _load_w(self, key: Hashable, place: Ref) -> list[Command]:
        assert isinstance(key, int)
        count = min(self.columns, self.blocks - key)
        source = Ref(self.w_dram, 0, key * self.w_block)
        return [self.context.command(Unit.LOAD, dram=source, dst=place, len=count * self.w_block)]

    def steps(self) -> list[Step]:
        """All tiles: blocks of channels, images, bands, strips of a band, and in a strip tile after tile."""
        return [
            step
            for block, blocks in pieces(self.blocks, self.columns)
            for number in range(self.layer.batch)
            for start, rows in pieces(self.y.h, self.band)
            for strip in range(len(self.strips))
            for step in self._strip(number, start, rows, strip, block, blocks)
        ]

    def _strip(self, number: int, start: int, rows: int, strip: int, block: int, blocks: int) -> list[Step]:
        self._turn_to(number)
        self._enter(strip)
        drain = self.drains[strip]
        drain.turn_to(number)
        out = []
        keep = blocks == 1 and self.passes == 1
        self.row = 0
        for offset, count in pieces(rows, self.rows):
            step = Step(block=block)
            if self.x.on_chip:
                base, first, image = self.x.at(0, 0, block * self.config.n), 0, self.x.h
            else:
                base = self.x_tiles.get((number, start, rows, block), step)
                first, image = self._image(start, rows)
            acc, weights = self.acc.next(), self.w.get(block, step)
            more = keep and offset + count < rows
            n = self.config.n
            for (g0, g), (t0, t) in product(pieces(self.kernel_h, self.groups), pieces(self.taps, n)):
                taps = _Taps(g0, g, t0, t)
                stream = self._stream(start + offset, count, taps, keep and offset > 0, more)
                stream["u0"] -= first
                fields = self._fields(count, block, blocks, t0)
                step.matrix.append(
                    self.context.command(
                        Unit.MATRIX, **stream, **fields, u_lim=image, a_base=base, acc_base=acc,
                        w_base=weights.plus((g0 * self.taps + t0) * n),
                    )
                )  # fmt: skip
            how = self.p.fields(block, step)
            drain.add(step, acc, how, start + offset, count, block, blocks)
            out.append(step)
        return out

    def _stream(self, start: int, rows: int, taps: _Taps, continued: bool, more: bool) -> dict[str, int]:
        """Which pixels a pass streams; one that is continued later streams whole image rows."""
        stride, g = self.layer.strides[0], taps.rows
        if continued:
            before, row, streamed = stride - 1, self.row, rows * stride
        else:
            row = start * stride - self.layer.pads[0] + taps.row
            missing = min(max(-row, 0), g - 1)  # rows above the image: the zeros before the stream
            row, before = row + missing, g - 1 - missing
            streamed = (rows - 1) * stride + before + 1
        lead = before * self.pitch + taps.columns - 1
        length = streamed * self.pitch
        if not more:
            length = (rows - 1) * stride * self.pitch + lead + (self.width - 1) * self.layer.strides[1] + 1
        self.row = row + streamed
        word = MATRIX_WORD.pack(
            dw=1, taps=taps.columns, groups=g, keep=int(continued), accumulate=int(taps.row + taps.column > 0),
            a_unsigned=int(self.layer.shapes[self.layer.x].dtype == Dtype.U8),
            w_unsigned=int(self.layer.weights.dtype == np.uint8),
        )  # fmt: skip
        return {"word": word, "u0": row, "dw_lead": lead, "dw_len": length}

    def _fields(self, rows: int, block: int, blocks: int, tap: int) -> dict[str, int]:
        layer, n = self.layer, self.config.n
        last = block + blocks == self.blocks
        return {
            "a_zp": layer.x_zp, "x_count": self.pitch, "oc_count": blocks, "a_u": self.x_row,
            "a_v": self.x_pixel, "a_oc": self.x.block(n), "u_y": 1, "v_x": 1, "v_lim": self.x.w,
            "v0": self.column * layer.strides[1] - layer.pads[1] + tap,
            "w_row": n, "w_oc": self.w_block, "acc_x": 1, "acc_y": self.width, "acc_oc": rows * self.width,
            "n_tail": (self.channels - 1) % n + 1 if last else 0, "dw_out_w": self.width,
            "dw_sx": layer.strides[1], "dw_sy": layer.strides[0],
        }  # fmt: skip


def depthwise_steps(context: Context, layer: DepthwiseLayer) -> list[Step]:
    """The steps of a depthwise convolution."""
    return DepthwiseSteps(context, layer).steps()
