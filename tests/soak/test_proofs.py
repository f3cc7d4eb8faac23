"""Proofs that take longer than a minute."""

from pathlib import Path

from tests.formal import queue_contracts
from tests.formal.prover import prove
from tests.formal.unpacker_contracts import ValueContract


def test_values_of_unpacked_weights(tmp_path: Path) -> None:
    """The first group of any line is that of the definition; about three minutes on a quiet core."""
    prove(tmp_path, ValueContract(), bounded=5, induction=0)


def test_order_of_commands(tmp_path: Path) -> None:
    """Commands leave a queue in order; about one minute on a quiet core."""
    prove(tmp_path, queue_contracts.CONTRACTS["order"](), bounded=8, induction=0)
