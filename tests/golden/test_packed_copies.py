"""Packed loads of several copies of a machine equal those of each copy."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cosim.golden.batch import BatchMemories, MemoryImage
from cosim.golden.dma import run_load
from cosim.golden.memory import Memories
from hw.config import MlaConfig


@pytest.mark.parametrize("first", [0, 2048])
def test_copies_expand_their_lines(first: int, rng: np.random.Generator) -> None:
    config = MlaConfig(n=8)
    dram = rng.integers(0, 256, 2048, dtype=np.uint8)
    alone = Memories(config, dram)
    image = MemoryImage.of(alone)
    c: Any = SimpleNamespace(
        packed=1, fill=0, transpose=0, space=0, dram=100, len=150, y_count=3, dram_y=200, z_count=7, dram_z=0
    )
    c.dst, c.dst_y, c.dst_z = 64, 512, 24
    run_load(alone, c)
    copies = BatchMemories(config, image, 3, first)
    copies._load(c)
    assert alone.sp.any() and all(np.array_equal(sp, alone.sp) for sp in copies.sp)
