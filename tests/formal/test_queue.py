"""Proofs about command queues and semaphores with yowasp-sby and z3."""

from pathlib import Path

import pytest

from tests.formal.prover import prove
from tests.formal.queue_contracts import CONTRACTS

#: The order depends on the queue's history, so it is checked only in the first cycles after reset, and in two more by
#: `tests/soak/test_proofs.py`. The other contracts are proved by induction.
BOUNDED = {"order": 6}
#: Contracts of further semaphores, which are updated by the same operations; `tests/soak/test_proofs.py` proves them.
OTHERS = ("semaphore_2_4_3", "semaphore_3_3_0")


@pytest.mark.parametrize("name", [name for name in CONTRACTS if name not in OTHERS])
def test_queue_contract(tmp_path: Path, name: str) -> None:
    prove(tmp_path, CONTRACTS[name](), bounded=BOUNDED.get(name), induction=2)
