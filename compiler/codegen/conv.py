"""Convolutions, and products with constant weights, as commands."""

from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from compiler.codegen.build import Context, Parameters, Tiles, Turns, image_rows, pieces
from compiler.codegen.command import Command, Memory, Ref, Ring, Step
from compiler.codegen.drain import Drainer
from compiler.codegen.home import Home
from compiler.kernels.tiles import ceil_div
from compiler.lower.layer import ConvLayer
from hw.config import MlaConfig
from hw.isa.commands import LOAD_WORD, MATRIX_WORD
from hw.isa.enums import Dtype, Unit

#: First row and number of rows.
_Rows = tuple[int, int]


def pack_weights(config: MlaConfig, weights: NDArray) -> NDArray[np.uint8]:
    """Weights (out_c, kernel_h, kernel_w, in_c) as [block][kernel row][kernel column][in_c][N]."""
    n, out_c = config.n, weights.shape[0]
    blocks = ceil_div(out_c, n)
    padded = np.zeros((blocks * n, *weights.shape[1:]), np.uint8)
    padded[:out_c] = weights.view(np.uint8)
    return np.ascontiguousarray(padded.reshape(blocks, n, *weights.shape[1:]).transpose(0, 2, 3, 4, 1))


def can_fold(config: MlaConfig, layer: ConvLayer, x: Home) -> bool:
    """Whether kernel columns can be part of the reduction: neighbours in memory, padding stored, image from DRAM."""
    return (
        layer.groups == 1 and layer.dilations[1] == 1 and layer.weights.shape[2] > 1 and not x.on_chip
    )  # fmt: skip


class ConvSteps:
    """The steps of one group of channels of a convolution.

    Parameters
    ----------
    context : Context
        Where for.
    layer : ConvLayer
        What.
    group : int
        Which group.
    """

    def __init__(self, context: Context, layer: ConvLayer, group: int):
        self.context, self.layer, self.group = context, layer, group
        self.config, schedule = context.config, context.schedule
        self.x, self.y = context.homes[layer.x], context.homes[layer.y]
        out_c, self.kernel_h, self.kernel_w, self.in_c = layer.weights.shape
        self.out_c = out_c // layer.groups
        n = self.config.n
        self.fold = schedule.fold and can_fold(self.config, layer, self.x)
        self.reduction = self.in_c * (self.kernel_w if self.fold else 1)
        self.blocks = ceil_div(self.out_c, n)
        self.k_blocks = ceil_div(self.reduction, n)
        self.band = min(schedule.band, self.y.h)
        self.rows = min(schedule.rows, self.band)
        self.columns = min(schedule.columns, self.blocks)
        self.k_size = min(schedule.depth, self.k_blocks)
        if self.fold:
            self.k_size = self.k_blocks
        self._rings()

    def _rings(self) -> None:
        layer, schedule, n = self.layer, self.context.schedule, self.config.n
        name = layer.name if layer.groups == 1 else f"{layer.name}.{self.group}"
        part = slice(self.group * self.out_c, (self.group + 1) * self.out_c)
        self.packed = pack_weights(self.config, np.ascontiguousarray(layer.weights[part]))
        self.w_dram = self.context.constant(f"{name}.weights", self.packed)
        taps = self.kernel_h * self.kernel_w
        self.w_block = taps * self.in_c * n
        k_pieces = ceil_div(self.k_blocks, self.k_size)
        self.w_part = self.w_block if k_pieces == 1 else taps * self.k_size * n * n
        tiles = ceil_div(self.blocks, self.columns) * k_pieces
        w_ring = Ring(Memory.SP, f"{name}.w", self.columns * self.w_part, min(schedule.w_buffers, tiles))
        self.w = Tiles(w_ring, self._load_w)
        self.p = Parameters(self.context, name, layer.drain.part(part), self.columns)
        acc_tiles = ceil_div(self.blocks, self.columns) * ceil_div(self.y.h, self.rows)
        self.acc = Turns(
            Memory.ACC, f"{name}.acc", self.rows * self.y.w * self.columns,
            min(schedule.acc_buffers, acc_tiles),
        )  # fmt: skip
        self._x_ring(name, k_pieces)
        self.drain = Drainer(
            self.context, name, layer.drain.part(part), self.y, self.rows, self.columns,
            self.group * self.out_c,
        )  # fmt: skip

    def _x_ring(self, name: str, k_pieces: int) -> None:
        """Room for image rows, unless the image is there already."""
        self.left = self.right = 0
        if self.x.on_chip:
            self.x_pixel, self.x_row = self.x.pixel, self.x.row
            return
        if self.fold:
            self.left = self.layer.pads[1]
            reach = (self.y.w - 1) * self.layer.strides[1] + self.kernel_w
            self.right = max(reach - self.left - self.x.w, 0)
        whole = k_pieces == 1
        self.x_pixel = self.x.c if whole else self.k_size * self.config.n
        self.x_row = (self.left + self.x.w + self.right) * self.x_pixel
        most = max(self._image(start, rows)[1] for start, rows in pieces(self.y.h, self.band))
        bands = ceil_div(self.y.h, self.band) * k_pieces
        size = most * self.x_row + self.config.n
        self.x_tiles = Tiles(
            Ring(Memory.SP, f"{name}.x", size, min(self.context.schedule.x_buffers, bands)), self._load_x
        )

    def _image(self, start: int, rows: int) -> tuple[int, int]:
        layer = self.layer
        return image_rows(
            start,
            rows,
            layer.strides[0],
            layer.pads[0],
            (self.kernel_h - 1) * layer.dilations[0] + 1,
            self.x.h,
        )

    def _load_x(self, key: Hashable, place: Ref) -> list[Command]:
        start, rows, k = key  # type: ignore[misc]
        first, count = self._image(start, rows)
        channel = k * self.config.n + (0 if self.k_size == self.k_blocks else self.group * self.in_c)
        length = min(self.x_pixel, self.x.c - channel)
        inner = place.plus(self.left * self.x_pixel)
        source = self.x.at(first, 0, channel)
        if length == self.x.c < self.x.pixel:
            lines = {
                "len": length, "y_count": self.x.w, "dram_y": self.x.pixel, "dst_y": self.x_pixel,
                "z_count": count, "dram_z": self.x.row, "dst_z": self.x_row,
            }  # fmt: skip
        elif length == self.x.c and not self.left + self.right:
            lines = {"len": count * self.x.w * self.x.c}
        elif length == self.x.c:
            lines = {"len": self.x.w * self.x.c, "y_count": count, "dram_y": self.x.row, "dst_y": self.x_row}
        else:
            lines = {
                "len": length, "y_count": count * self.x.w, "dram_y": self.x.pixel, "dst_y": self.x_pixel,
            }  # fmt: skip
        return [
            *self._borders(place, count),
            self.context.command(Unit.LOAD, dram=source, dst=inner, **lines),
        ]

    def _borders(self, place: Ref, rows: int) -> list[Command]:
        """The stored padding left and right: bytes of the zero point."""
        word = LOAD_WORD.pack(fill=1, fill_value=self.layer.x_zp & 0xFF)
        return [
            self.context.command(
                Unit.LOAD, word=word, dram=0, dst=place.plus(offset), len=columns * self.x_pixel,
                y_count=rows, dst_y=self.x_row,
            )
            for columns, offset in (
                (self.left, 0), (self.right, (self.left + self.x.w) * self.x_pixel),
            )
            if columns
        ]  # fmt: skip

    def _load_w(self, key: Hashable, place: Ref) -> list[Command]:
        block, k = key  # type: ignore[misc]
        n = self.config.n
        count = min(self.columns, self.blocks - block)
        if self.k_size == self.k_blocks:
            return [
                self.context.command(
                    Unit.LOAD,
                    dram=Ref(self.w_dram, 0, block * self.w_block),
                    dst=place,
                    len=count * self.w_block,
                )
            ]
        taps = self.kernel_h * self.kernel_w
        length = min(self.k_size * n, self.in_c - k * n) * n
        return [
            self.context.command(
                Unit.LOAD, dram=Ref(self.w_dram, 0, block * self.w_block + k * n * n), dst=place,
                len=length, y_count=taps, dram_y=self.in_c * n, dst_y=self.k_size * n * n,
                z_count=count, dram_z=self.w_block, dst_z=self.w_part,
            )
        ]  # fmt: skip

    def steps(self) -> list[Step]:
        """All tiles in the schedule's order."""
        bands = [
            (band, start + first, rows)
            for band in pieces(self.y.h, self.band)
            for start in [band[0]]
            for first, rows in pieces(band[1], self.rows)
        ]
        blocks = list(pieces(self.blocks, self.columns))
        if self.context.schedule.order == "rows":
            tiles = [(band, block) for band in bands for block in blocks]
        else:
            tiles = [(band, block) for block in blocks for band in bands]
        return [step for band, block in tiles for step in self._tile(*band, *block)]

    def _tile(self, band: _Rows, start: int, rows: int, block: int, blocks: int) -> list[Step]:
        acc = self.acc.next()
        out = []
        for k, k_count in pieces(self.k_blocks, self.k_size):
            step = Step()
            step.matrix.append(self._matrix(step, acc, band, start, rows, block, blocks, k, k_count))
            out.append(step)
        slot = self.p.get(block, out[-1])
        self.drain.add(out[-1], acc, slot, start, rows, block, blocks)
        return out

    def _matrix(
        self, step: Step, acc: Ref, band: _Rows, start: int, rows: int, block: int, blocks: int, k: int,
        k_count: int,
    ) -> Command:  # fmt: skip
        layer, n = self.layer, self.config.n
        last_k = k + k_count == self.k_blocks
        if self.x.on_chip:
            base, first, count = self.x.at(0, 0, self.group * self.in_c + k * n), 0, self.x.h
        else:
            first, count = self._image(*band)
            base = self.x_tiles.get((*band, k), step)
            if layer.groups > 1 and self.k_size == self.k_blocks:
                base = base.plus(self.group * self.in_c)
        u0 = start * layer.strides[0] - layer.pads[0] - first
        if self._flat():
            base = base.plus(u0 * self.x_row)
        fields: dict[str, int | Ref] = {
            "word": MATRIX_WORD.pack(
                accumulate=int(k > 0),
                a_unsigned=int(layer.shapes[layer.x].dtype == Dtype.U8),
                w_unsigned=int(layer.weights.dtype == np.uint8),
            ),
            "a_base": base,
            "a_zp": layer.x_zp,
            "w_zp": layer.w_zp,
            "w_base": self.w.get((block, k), step),
            "acc_base": acc,
            "ic_count": k_count,
            "k_tail": (self.reduction - 1) % n + 1 if last_k else 0,
            "oc_count": blocks,
            "n_tail": (self.out_c - 1) % n + 1 if block + blocks == self.blocks else 0,
            "a_ic": n,
            "w_row": n,
            "w_ic": n * n,
            "w_oc": self.w_part,
            "acc_x": 1,
            "acc_oc": rows * self.y.w,
        }
        return self.context.command(Unit.MATRIX, **(fields | self._walk(u0, rows, count)))

    def _walk(self, u0: int, rows: int, count: int) -> dict[str, int]:
        """The walk over the image and the kernel."""
        layer, n = self.layer, self.config.n
        row = self.in_c * n if self.k_size == self.k_blocks else self.k_size * n * n
        if self._flat():
            return {"x_count": rows * self.y.w, "a_v": self.x_pixel}
        walk = {
            "x_count": self.y.w, "y_count": rows, "ky_count": self.kernel_h, "a_u": self.x_row,
            "a_v": self.x_pixel, "u0": u0, "u_y": layer.strides[0], "u_ky": layer.dilations[0],
            "v_x": layer.strides[1], "u_lim": count, "w_ky": row * self.kernel_w, "acc_y": self.y.w,
        }  # fmt: skip
        if self.fold:
            return walk
        return walk | {
            "kx_count": self.kernel_w, "v0": -layer.pads[1], "v_kx": layer.dilations[1],
            "v_lim": self.x.w, "w_kx": row,
        }  # fmt: skip

    def _flat(self) -> bool:
        """Every output pixel is one input pixel: rows need not be told apart."""
        layer = self.layer
        return (
            (self.kernel_h, self.kernel_w) == (1, 1) and layer.strides == (1, 1) and layer.pads == (0, 0, 0, 0)
            and self.x_row == self.x.w * self.x_pixel and (self.y.h, self.y.w) == (self.x.h, self.x.w)
        )  # fmt: skip


def conv_steps(context: Context, layer: ConvLayer) -> list[Step]:
    """The steps of a convolution, group by group."""
    return [step for group in range(layer.groups) for step in ConvSteps(context, layer, group).steps()]
