"""Proofs that take longer than a minute, and proofs of further machines of properties that `tests/formal` proves."""

from pathlib import Path

import pytest

from hw.config import MlaConfig
from hw.isa.enums import Unit
from tests.formal import queue_contracts
from tests.formal.array_contracts import SumContract, Tile
from tests.formal.matrix_contracts import CONFIGS, FeedValueContract
from tests.formal.prover import prove
from tests.formal.test_matrix import OTHER_CASES, PROOFS, WIDE_TILES
from tests.formal.test_queue import OTHERS
from tests.formal.test_unpacker import BOUNDED
from tests.formal.trap_contracts import LATENCY, ModeContract
from tests.formal.unpacker_contracts import CONTRACTS, WIDE, ValueContract


def test_values_of_unpacked_weights(tmp_path: Path) -> None:
    """The first group of any line is that of the definition; about three minutes on a quiet core."""
    prove(tmp_path, ValueContract(), bounded=5, induction=0)


@pytest.mark.parametrize("name", ["count", "held"])
def test_unpacked_lines_with_beats_of_two_rows(tmp_path: Path, name: str) -> None:
    """The contracts of `tests/formal/test_unpacker.py` hold for beats of two rows, too; about half a minute."""
    prove(tmp_path, CONTRACTS[name](config=WIDE), bounded=BOUNDED[name], induction=0)


def test_order_of_commands(tmp_path: Path) -> None:
    """Commands leave a queue in order; about one minute on a quiet core."""
    prove(tmp_path, queue_contracts.CONTRACTS["order"](), bounded=8, induction=0)


@pytest.mark.parametrize("name", OTHERS)
def test_tokens_of_semaphores(tmp_path: Path, name: str) -> None:
    """Tokens of further semaphores are neither lost nor created."""
    prove(tmp_path, queue_contracts.CONTRACTS[name](), bounded=None, induction=2)


def test_values_of_weights(tmp_path: Path) -> None:
    """The weights and sources of a tile that enter the array are those of its rows."""
    prove(tmp_path, FeedValueContract(CONFIGS["sparse"]), bounded=PROOFS[FeedValueContract][0], induction=0)


@pytest.mark.parametrize(
    "following",
    [Tile("normal", by_column=False, lanes=(1, 2)), Tile("sparse", by_column=False, lanes=(5, 2))],
    ids=["normal", "sparse"],
)
def test_sums_after_a_wide_tile(tmp_path: Path, following: Tile) -> None:
    """The sums of rows of tiles with any weights, of which the second begins N / 2 cycles after the first."""
    contract = SumContract(CONFIGS["sparse"], [*WIDE_TILES, following])
    prove(tmp_path, contract, bounded=contract.cycles, induction=0)


@pytest.mark.parametrize(("contract", "config"), OTHER_CASES)
def test_matrix_contract(tmp_path: Path, contract: type, config: str) -> None:
    """The properties of MATRIX that depend on a mode hold in machines without the mode."""
    bounded, induction = PROOFS[contract]
    prove(tmp_path, contract(CONFIGS[config]), bounded=bounded, induction=induction)


def test_illegal_mode_traps(tmp_path: Path) -> None:
    """A wide, sparse or scaled command traps in a machine without these modes."""
    contract = ModeContract(MlaConfig(n=4, wide=0, sparse=0), Unit.MATRIX)
    prove(tmp_path, contract, bounded=LATENCY + 1, induction=0)


@pytest.mark.parametrize(
    ("unit", "config"),
    [
        (Unit.LOAD, MlaConfig(n=4)),
        (Unit.MATRIX, MlaConfig(n=4)),
        (Unit.MATRIX, MlaConfig(n=4, sparse=0)),
    ],
    ids=["packed", "modes", "no_sparse"],
)
def test_conflicting_modes_trap(tmp_path: Path, unit: Unit, config: MlaConfig) -> None:
    """A command whose modes conflict with each other or with other fields traps."""
    prove(tmp_path, ModeContract(config, unit), bounded=LATENCY + 1, induction=0)
