"""Execution of single operators on numpy arrays with the resident library programs of a device."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from compiler.kernel_library.conv import (
    Conv,
    conv_operands,
    conv_tiles,
    depthwise_operands,
    depthwise_tiles,
    pack_conv_weights,
    pack_depthwise_weights,
)
from compiler.kernel_library.elementwise import (
    Elementwise,
    copy_operands,
    elementwise_operands,
    transpose_operands,
)
from compiler.kernel_library.gemm import C_BYTES, gemm_i32_operands, gemm_operands, gemm_tiles, pack_weights
from compiler.kernel_library.reduce import pool_operands, reduce_operands, softmax_operands, softmax_tables
from compiler.util.scaling import param_image, quantize_multiplier
from cosim.driver import Driver
from cosim.programs import Candidate
from hw.isa.assembler import assemble
from hw.isa.enums import Dtype, Reduce, Rounding
from hw.isa.program import Program


class ProgramLibrary:
    """Library programs on a device; each program is loaded on first use.

    Parameters
    ----------
    driver : Driver
        Driver of the device.
    """

    def __init__(self, driver: Driver):
        self.driver = driver
        self.config = driver.config
        self._segments: dict[str, int] = {}
        self._bound: set[str] = set()

    def segment(self, operation: str) -> int:
        """Return the segment of an operation's program, loading it if necessary."""
        name = program_name(operation)
        if name not in self._segments:
            self._segments[name] = self.driver.load(resident_program(name))
        return self._segments[name]

    def bind(self, operation: str) -> int:
        """Return the operation's macro opcode; bind it to the operation's program on first use."""
        if operation not in self._bound:
            self.driver.programs.bind(OPCODES[operation], [Candidate(self.segment(operation))])
            self._bound.add(operation)
        return OPCODES[operation]

    def enqueue(self, operation: str, operands: Sequence[int], *, tag: int = 0, irq: bool = False) -> int:
        """Enqueue an operation and return the number of the macro-instruction."""
        return self.driver.enqueue(self.bind(operation), operands, tag=tag, irq=irq)


LIBRARY = Path(__file__).parents[2] / "hw" / "library"

#: Macro opcode of each operation.
OPCODES = {
    "gemm_i8": 1,
    "gemm_i32": 2,
    "conv2d_i8": 3,
    "depthwise_i8": 4,
    "add_i8": 5,
    "mul_i8": 6,
    "pool_i8": 7,
    "table_i8": 8,
    "transpose": 9,
    "copy": 10,
    "reduce": 11,
    "softmax_i8": 12,
    "requantize_i8": 13,
}
#: Operations that share one program with different operands.
SHARED = {
    "add_i8": "elementwise",
    "mul_i8": "elementwise",
    "table_i8": "elementwise",
    "requantize_i8": "elementwise",
}


def program_name(operation: str) -> str:
    """Return the name of the program that implements an operation."""
    return SHARED.get(operation, operation)


@cache
def resident_program(name: str) -> Program:
    """Return the assembled library program `name`."""
    return assemble((LIBRARY / f"{name}.s").read_text(), f"{name}.s")


Int8 = NDArray[np.int8]
_NUMPY = {Dtype.I8: np.int8, Dtype.U8: np.uint8, Dtype.I16: np.int16, Dtype.I32: np.int32}


class Output(TypedDict, total=False):
    """Output zero point, clip range and rounding of an operator with int8 results; zero point of the activations."""

    zp: int
    clip: tuple[int, int]
    rounding: Rounding
    a_zp: int


class Operators(ProgramLibrary):
    """Operators on whole arrays; each call frees the DRAM that it allocated.

    `scales` has one entry per output channel: the product of the input scales divided by the output scale.
    """

    def _parameters(self, bias: np.ndarray, scales: Sequence[float]) -> int:
        pairs = [quantize_multiplier(float(scale)) for scale in scales]
        return self.driver.put(param_image(self.config.n, bias, *np.array(pairs, np.int64).T))

    def _run(
        self,
        operation: str,
        shape: Sequence[int],
        operands: Callable[[int], list[int]],
        dtype: type = np.int8,
    ) -> np.ndarray:
        """Run an operation; `operands` returns its operands, given the DRAM address allocated for the result."""
        mark = self.driver.memory.mark()
        y = self.driver.memory.alloc(int(np.prod(shape)) * np.dtype(dtype).itemsize, 64, "result")
        self.enqueue(operation, operands(y))
        self.driver.run()
        result = self.driver.fetch(y, shape, dtype)
        self.driver.memory.release(mark)
        return result

    def gemm(
        self, a: Int8, b: Int8, bias: np.ndarray, scales: Sequence[float], **output: Unpack[Output]
    ) -> Int8:
        """Return the requantized result of (a - a_zp) x b + bias."""
        (m, k), n, config, put = a.shape, b.shape[1], self.config, self.driver.put
        return self._run(
            "gemm_i8",
            (m, n),
            lambda y: gemm_operands(
                config,
                gemm_tiles(config, m, n, k),
                a=put(a),
                b=put(pack_weights(config, b)),
                c=y,
                p=self._parameters(bias, scales),
                m=m,
                n=n,
                k=k,
                **output,
            ),
        )

    def gemm_i32(
        self,
        a: Int8,
        b: Int8,
        c0: np.ndarray | None = None,
        *,
        alpha: int = 1,
        beta: int = 0,
        a_zp: int = 0,
        b_zp: int = 0,
    ) -> NDArray[np.int32]:
        """Return alpha * (a - a_zp) x (b - b_zp) + beta * c0."""
        (m, k), n, config, put = a.shape, b.shape[1], self.config, self.driver.put
        return self._run(
            "gemm_i32",
            (m, n),
            lambda y: gemm_i32_operands(
                config,
                gemm_tiles(config, m, n, k, C_BYTES, buffer_counts=(2,)),
                a=put(a),
                b=put(pack_weights(config, b)),
                c=y,
                m=m,
                n=n,
                k=k,
                c0=0 if c0 is None else put(c0.astype(np.int32)),
                alpha=alpha,
                beta=beta,
                a_zp=a_zp,
                b_zp=b_zp,
            ),
            np.int32,
        )

    def conv(
        self,
        x: Int8,
        weights: Int8,
        bias: np.ndarray,
        scales: Sequence[float],
        conv: Conv,
        **output: Unpack[Output],
    ) -> Int8:
        """Return the convolution of an image (h, w, c) with weights (out c, kernel h, kernel w, c of a group)."""
        config, put = self.config, self.driver.put
        tiles = conv_tiles(config, conv)

        def operands(y: int) -> list[int]:
            address = put(x)
            *others, last = [
                conv_operands(
                    config,
                    conv,
                    tiles,
                    x=address,
                    w=put(pack_conv_weights(config, weights[part])),
                    y=y,
                    p=self._parameters(bias[part], scales[part]),
                    group=group,
                    **output,
                )
                for group in range(conv.groups)
                for part in [slice(group * conv.out_c, (group + 1) * conv.out_c)]
            ]
            for each in others:
                self.enqueue("conv2d_i8", each)
            return last

        return self._run("conv2d_i8", (conv.out_h, conv.out_w, conv.out_c * conv.groups), operands)

    def depthwise(
        self,
        x: Int8,
        weights: Int8,
        bias: np.ndarray,
        scales: Sequence[float],
        conv: Conv,
        **output: Unpack[Output],
    ) -> Int8:
        """Return the depthwise convolution of an image (h, w, c) with weights (kernel h, kernel w, c)."""
        config, put = self.config, self.driver.put
        return self._run(
            "depthwise_i8",
            (conv.out_h, conv.out_w, conv.in_c),
            lambda y: depthwise_operands(
                config,
                conv,
                depthwise_tiles(config, conv),
                x=put(x),
                y=y,
                w=put(pack_depthwise_weights(config, weights)),
                p=self._parameters(bias, scales),
                **output,
            ),
        )

    def elementwise(
        self,
        operation: str,
        how: Elementwise,
        a: np.ndarray,
        b: np.ndarray | None = None,
        *,
        table: np.ndarray | None = None,
        dtype: Dtype = Dtype.I8,
    ) -> np.ndarray:
        """Return the result of an operation that `compiler.kernel_library.elementwise` describes."""
        put = self.driver.put
        return self._run(
            operation,
            a.shape,
            lambda y: elementwise_operands(
                self.config,
                how,
                total=a.size,
                a=put(a),
                y=y,
                b=0 if b is None else put(b),
                table=0 if table is None else put(table),
            ),
            _NUMPY[dtype],
        )

    def pool(
        self, x: Int8, pool: Conv, *, average: bool = False, clip: tuple[int, int] = (-128, 127)
    ) -> Int8:
        """Return the maximum or average pooling of one image (h, w, c)."""
        return self._run(
            "pool_i8",
            (pool.out_h, pool.out_w, pool.in_c),
            lambda y: pool_operands(self.config, pool, x=self.driver.put(x), y=y, average=average, clip=clip),
        )

    def softmax(self, x: Int8, scale: float) -> Int8:
        """Return the softmax of each row, with scale 1/256 and zero point -128.

        `scale` is softmax's beta times the scale of the input.
        """
        (rows, cols), put = x.shape, self.driver.put
        return self._run(
            "softmax_i8",
            x.shape,
            lambda y: softmax_operands(
                self.config, x=put(x), y=y, rows=rows, cols=cols, tables=put(softmax_tables(scale, cols))
            ),
        )

    def reduce(
        self,
        x: Int8,
        how: Reduce,
        *,
        scale: float | None = None,
        x_zp: int = 0,
        y_zp: int = 0,
        dtype: Dtype = Dtype.I32,
        rounding: Rounding = Rounding.DOUBLE,
    ) -> np.ndarray:
        """Return the sum, maximum or minimum of each row of a matrix (rows, cols)."""
        rows, cols = x.shape
        return self._run(
            "reduce",
            (rows,),
            lambda y: reduce_operands(
                self.config,
                x=self.driver.put(x),
                y=y,
                rows=rows,
                cols=cols,
                how=how,
                scale=scale,
                x_zp=x_zp,
                y_zp=y_zp,
                y_dtype=dtype,
                rounding=rounding,
            ),
            _NUMPY[dtype],
        )

    def transpose(self, x: np.ndarray) -> np.ndarray:
        """Return the transpose of a matrix of bytes."""
        rows, cols = x.shape
        return self._run(
            "transpose",
            (cols, rows),
            lambda y: transpose_operands(self.config, x=self.driver.put(x), y=y, rows=rows, cols=cols),
            x.dtype.type,
        )

    def copy(self, x: np.ndarray) -> np.ndarray:
        """Return a copy of an array of bytes (planes, lines, length)."""
        planes, lines, length = x.shape
        strides = (length, lines * length)
        return self._run(
            "copy",
            x.shape,
            lambda y: copy_operands(
                self.config,
                x=self.driver.put(x),
                y=y,
                length=length,
                lines=lines,
                planes=planes,
                x_strides=strides,
                y_strides=strides,
            ),
            x.dtype.type,
        )
