"""Memories of the machine, and gather and scatter operations on them."""

import numpy as np

from hw.config import MlaConfig
from hw.isa.enums import DTYPE_BYTES, Dtype

_NUMPY = {
    Dtype.I8: np.dtype("i1"),
    Dtype.U8: np.dtype("u1"),
    Dtype.I16: np.dtype("<i2"),
    Dtype.I32: np.dtype("<i4"),
}


class Memories:
    """DRAM, scratchpad, accumulator, parameter slots and tables.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine, which determines the sizes.
    dram : numpy.ndarray
        DRAM image as uint8.
    """

    def __init__(self, config: MlaConfig, dram: np.ndarray):
        n = config.n
        self.config = config
        self.dram = dram
        self.sp = np.zeros(config.sp_bytes, np.uint8)
        self.acc = np.zeros((config.acc_rows, n), np.int32)
        self.param = np.zeros(config.param_slots * 16 * n, np.uint8)
        self.table = np.zeros(config.table_slots * 512, np.uint8)
        self.line = np.zeros((0, n), np.int32)  # pixels of the last depthwise stream, used by `keep`

    def slot(self, index: int) -> dict[str, np.ndarray]:
        """Return the values of parameter slot `index` on all lanes, by name: bias, mult, exp, neg_mult, neg_exp."""
        n = self.config.n
        raw = self.param[index * 16 * n : (index + 1) * 16 * n]
        return {
            "bias": raw[: 4 * n].view("<i4"),
            "mult": raw[4 * n : 8 * n].view("<i4"),
            "exp": raw[8 * n : 9 * n].view("i1"),
            "neg_mult": raw[9 * n : 13 * n].view("<i4"),
            "neg_exp": raw[13 * n : 14 * n].view("i1"),
        }

    def table_values(self, index: int) -> np.ndarray:
        """Return a view of the 256 int16 entries of a table."""
        return self.table[index * 512 : (index + 1) * 512].view("<i2")


def windows(memory: np.ndarray, width: int) -> np.ndarray:
    """Return a view of a byte array whose row i consists of bytes i..i + width - 1."""
    return np.ndarray((memory.size - width + 1, width), np.uint8, memory, 0, (1, 1))  # pyright: ignore


def gather(memory: np.ndarray, addresses: np.ndarray, lanes: int, dtype: Dtype) -> np.ndarray:
    """Return a row of `lanes` elements from each byte address, as an array of shape (*addresses.shape, lanes)."""
    rows = windows(memory, lanes * DTYPE_BYTES[dtype])[addresses]
    return rows.view(_NUMPY[dtype])


def scatter(memory: np.ndarray, addresses: np.ndarray, rows: np.ndarray, dtype: Dtype) -> None:
    """Write one row of elements to each byte address; later rows overwrite earlier ones."""
    data = np.ascontiguousarray(rows.astype(_NUMPY[dtype])).view(np.uint8)
    windows(memory, data.shape[-1])[addresses] = data
