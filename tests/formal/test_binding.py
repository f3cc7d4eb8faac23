"""Proof that binding is atomic, with yowasp-sby and z3."""

from pathlib import Path

import pytest

from tests.formal.binding_contracts import CONTRACTS
from tests.formal.prover import prove

#: The table's memory needs its history: clearing, a write, a commit with its copy, a second one, and look-ups
#: in between.
BOUNDED = {"table": 14}


@pytest.mark.parametrize("name", CONTRACTS)
def test_contract(tmp_path: Path, name: str) -> None:
    prove(tmp_path, CONTRACTS[name](), bounded=BOUNDED.get(name), induction=8)
