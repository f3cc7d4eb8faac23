"""Look-up in a table of 256 entries: any function of one byte."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from compiler.kernel_library.elementwise import Elementwise, source_word, stage_word
from hw.isa.enums import Dtype


def table(dtype: Dtype = Dtype.I8) -> Elementwise:
    """Give y = table[a & 255], saturated to `dtype`; the table's DRAM address is an operand of its own."""
    return Elementwise(src=source_word(), stage=stage_word(dtype, table=1))


def table_image(function: Callable[[int], int]) -> NDArray[np.int16]:
    """Table of `function` over -128..127, where the hardware looks for it."""
    return np.array([function(i - 256 if i > 127 else i) for i in range(256)], np.int16)
