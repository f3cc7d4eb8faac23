"""Lookup in a table of 256 entries: any function of one byte."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from compiler.kernel_library.elementwise import Elementwise, source_word, stage_word
from hw.isa.enums import Dtype


def table(dtype: Dtype = Dtype.I8) -> Elementwise:
    """Return the operation y = table[a & 255], saturated to `dtype`; the table's DRAM address is a separate operand."""
    return Elementwise(src=source_word(), stage=stage_word(dtype, table=1))


def table_image(function: Callable[[int], int]) -> NDArray[np.int16]:
    """Return the table of `function` over -128..127 in hardware order."""
    return np.array([function(i - 256 if i > 127 else i) for i in range(256)], np.int16)
