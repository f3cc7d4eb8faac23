"""Proof that binding is atomic, with yowasp-sby and z3."""

from pathlib import Path

import pytest

from tests.formal.binding_contracts import CONTRACTS
from tests.formal.prover import prove

#: The contract of the table depends on its history, so it is checked for a bounded number of cycles: clearing, a
#: write, a commit with its copy, a second commit, and look-ups in between.
BOUNDED = {"table": 14}


@pytest.mark.parametrize("name", CONTRACTS)
def test_binding_contract(tmp_path: Path, name: str) -> None:
    prove(tmp_path, CONTRACTS[name](), bounded=BOUNDED.get(name), induction=8)
