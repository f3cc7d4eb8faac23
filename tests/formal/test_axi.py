"""Proofs about the AXI channels with yowasp-sby and z3."""

from pathlib import Path

import pytest

from tests.formal.axi_contracts import (
    CONTRACTS,
    WIDE,
    BurstContract,
    LoadContract,
    RecordContract,
    StoreContract,
)
from tests.formal.prover import prove

#: The order of bursts depends on the queue's history, so it is checked only in the first cycles after reset. The
#: other contracts are proved by induction.
BOUNDED = {"OrderContract": 8}


@pytest.mark.parametrize("name", CONTRACTS)
def test_axi_contract(tmp_path: Path, name: str) -> None:
    prove(tmp_path, CONTRACTS[name](), bounded=BOUNDED.get(name), induction=3)


@pytest.mark.parametrize("contract", [BurstContract, LoadContract, StoreContract, RecordContract])
def test_axi_contract_with_beats_of_two_rows(
    tmp_path: Path,
    contract: type[BurstContract] | type[LoadContract] | type[StoreContract] | type[RecordContract],
) -> None:
    prove(tmp_path, contract(WIDE), bounded=None, induction=3)
