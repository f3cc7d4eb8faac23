"""Random numbers whose seed is printed."""

import os

import numpy as np
import pytest


@pytest.fixture
def rng() -> np.random.Generator:
    seed = int(os.environ.get("MLA_SEED", "0")) or int.from_bytes(os.urandom(4), "little")
    print(f"MLA_SEED={seed}")
    return np.random.default_rng(seed)
