"""Proofs about the modes of MATRIX with yowasp-sby and z3; each proof fails for a mutant.

Proofs of machines without a mode, and longer ones about the sums of the array and the values of weights, are in
`tests/soak/test_proofs.py`.
"""

import inspect
from pathlib import Path
from types import ModuleType

import pytest

from hw.array import systolic
from hw.units.matrix import row_issue, weight_feed, writeback
from tests.formal.array_contracts import SumContract, Tile
from tests.formal.matrix_contracts import (
    CONFIGS,
    FeedOrderContract,
    FeedValueContract,
    IssueContract,
    OperandContract,
    UpdateContract,
)
from tests.formal.prover import prove

#: Contracts with the number of cycles after reset in which they are checked, or None if they are proved by induction
#: over the second number of cycles, which empties the pipelines.
PROOFS = {
    IssueContract: (None, 2),
    OperandContract: (None, 7),
    UpdateContract: (19, 0),
    FeedOrderContract: (13, 0),
    FeedValueContract: (8, 0),
}
#: Proofs of the machine with all modes, and those that differ without a mode, which `tests/soak/test_proofs.py` runs.
CASES = [(contract, "sparse") for contract in PROOFS if contract is not FeedValueContract]
OTHER_CASES = [
    (IssueContract, "plain"),
    (OperandContract, "wide"),
    (OperandContract, "plain"),
    (FeedOrderContract, "wide"),
]
#: Tiles of the proof about the array, with a row for the first and one for the last lane.
WIDE_TILES = [Tile("wide", by_column=False, lanes=(0, 7))]
#: Contract, component, a piece of its source, and the replacement that violates the contract.
MUTANTS = [
    (IssueContract, row_issue, "(row.scaled | ~scaled.any())", "(row.scaled | scaled.any())"),
    (IssueContract, row_issue, "self.act.pair.eq(pair)", "self.act.pair.eq(row.wide)"),
    (OperandContract, row_issue, "sparses[SP_ACT_LATENCY - 1]", "sparses[SP_ACT_LATENCY]"),
    (OperandContract, row_issue, "self.wide.eq(wides[-1])", "self.wide.eq(wides[-2])"),
    (UpdateContract, writeback, "for i in range(ROW_AFTER + 1)", "for i in range(ROW_AFTER)"),
    (UpdateContract, writeback, "issued.eq(valid[-1] |", "issued.eq("),
    (FeedOrderContract, weight_feed, 'self.pop & tile["sparse"]', 'self.pop & late["sparse"]'),
    (FeedOrderContract, weight_feed, "self.ready.eq(left <= 3)", "self.ready.eq(left <= 4)"),
    (FeedValueContract, weight_feed, "odd = position[1::2].any()", "odd = position[::2].any()"),
]


def mutant(source: ModuleType, old: str, new: str) -> ModuleType:
    """Return a module with one piece of its source replaced."""
    text, module = inspect.getsource(source), ModuleType("mutant")
    assert text.count(old) == 1
    exec(compile(text.replace(old, new), str(source.__file__), "exec"), module.__dict__)
    return module


@pytest.mark.parametrize(("contract", "config"), CASES)
def test_matrix_contract(tmp_path: Path, contract: type, config: str) -> None:
    bounded, induction = PROOFS[contract]
    prove(tmp_path, contract(CONFIGS[config]), bounded=bounded, induction=induction)


def test_sums_of_wide_rows(tmp_path: Path) -> None:
    contract = SumContract(CONFIGS["wide"], WIDE_TILES)
    prove(tmp_path, contract, bounded=contract.cycles, induction=0)


@pytest.mark.parametrize(("contract", "source", "old", "new"), MUTANTS)
def test_mutant_violates_contract(
    tmp_path: Path, contract: type, source: ModuleType, old: str, new: str
) -> None:
    bounded, induction = PROOFS[contract]
    with pytest.raises(AssertionError, match=r"DONE \(FAIL"):
        prove(
            tmp_path,
            contract(CONFIGS["sparse"], mutant(source, old, new)),
            bounded=bounded or induction + 3,
            induction=0,
        )


def test_mutant_of_array_has_other_sums(tmp_path: Path) -> None:
    source = mutant(systolic, "Mux(wides[k + c], upper, 0)", "0")
    contract = SumContract(CONFIGS["wide"], WIDE_TILES, source)
    with pytest.raises(AssertionError, match=r"DONE \(FAIL"):
        prove(tmp_path, contract, bounded=contract.cycles, induction=0)
