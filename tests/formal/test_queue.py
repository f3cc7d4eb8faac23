"""Proofs about command queues and semaphores with yowasp-sby and z3."""

from pathlib import Path

import pytest

from tests.formal.prover import prove
from tests.formal.queue_contracts import CONTRACTS

#: The order depends on the queue's history, so it is checked only in the first cycles after reset, and in two more by
#: `tests/soak/test_proofs.py`. The other contracts are proved by induction.
BOUNDED = {"order": 6}


@pytest.mark.parametrize("name", CONTRACTS)
def test_queue_contract(tmp_path: Path, name: str) -> None:
    prove(tmp_path, CONTRACTS[name](), bounded=BOUNDED.get(name), induction=2)
