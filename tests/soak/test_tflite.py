"""Many random cases of every TFLite operator, and long chains of operators, equal LiteRT (`make soak`)."""

from pathlib import Path

import numpy as np
import pytest

from tests.frontends.tflite.test_int16 import NETWORKS, random_networks
from tests.frontends.tflite.test_operators import COMBINATIONS, on_the_accelerator
from tests.frontends.tflite.test_random_networks import random_network
from tests.passes.test_kernel_sizes import sparse_convolution
from tests.support.redundant_networks import redundant_network
from tests.support.seeds import random_seed
from tests.support.tflite_models import check

MODELS, CHAINS = 25, 60
INT16_NETWORKS = 1000
REDUNDANT_NETWORKS = 200
SPARSE_KERNELS = 200


def generator() -> np.random.Generator:
    """Return a generator seeded by MLA_SEED, or by a new seed."""
    return np.random.default_rng(random_seed())


@pytest.mark.parametrize(("name", "dtype", "rounding"), COMBINATIONS)
def test_operators(name: str, dtype: str, rounding: str, tmp_path: Path) -> None:
    rng = generator()
    for _ in range(MODELS):
        on_the_accelerator(name, dtype, rounding, rng, tmp_path)


@pytest.mark.parametrize("rounding", ["reference", "xnnpack"])
def test_chains(rounding: str, tmp_path: Path) -> None:
    rng = generator()
    for number in range(CHAINS):
        check(random_network(rng, 10), tmp_path, rounding, target=("n4", "n8", "n16")[number % 3])


def test_int16_networks(tmp_path: Path) -> None:
    random_networks(range(NETWORKS, NETWORKS + INT16_NETWORKS), tmp_path)


@pytest.mark.parametrize("rounding", ["reference", "xnnpack"])
def test_redundant_networks(rounding: str, tmp_path: Path) -> None:
    rng = generator()
    for number in range(REDUNDANT_NETWORKS):
        draft = redundant_network(rng, int(rng.integers(3, 12)), ("int8", "uint8")[number % 4 == 3])
        check(draft, tmp_path, rounding, target=("n4", "n8", "n16")[number % 3])


@pytest.mark.parametrize("rounding", ["reference", "xnnpack"])
def test_sparse_kernels(rounding: str, tmp_path: Path) -> None:
    rng = generator()
    for number in range(SPARSE_KERNELS):
        draft = sparse_convolution(rng, ("int8", "uint8")[number % 4 == 3])
        check(draft, tmp_path, rounding, target=("n4", "n8", "n16")[number % 3])
