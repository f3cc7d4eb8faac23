"""Proofs about the expansion of packed weights with yowasp-sby and z3; each proof fails for a mutant.

The proof of the values takes minutes and is in `tests/soak/test_proofs.py`.
"""

import inspect
from pathlib import Path
from types import ModuleType

import pytest

from hw.units.load import unpacker
from tests.formal.prover import prove
from tests.formal.unpacker_contracts import CONTRACTS

#: Numbers of cycles after reset in which the groups are checked, since they depend on the history of a line. A group
#: leaves in the fourth cycle at the earliest.
BOUNDED = {"count": 7, "value": 5, "held": 8}
#: Contracts, and a piece of the source and its replacement that violates the contract.
MUTANTS = [
    ("count", "left.eq(left - kept)", "left.eq(left - used)"),
    ("count", "pads = busy & received & room", "pads = busy & received & ~received"),
    ("value", "(~beat.end | (beat.stop >= i))", "(~beat.end | (beat.stop > i))"),
    ("held", "free.eq(~valid | self.group.ready)", "free.eq(1)"),
]


@pytest.mark.parametrize("name", ["count", "held"])
def test_unpacker_contract(tmp_path: Path, name: str) -> None:
    prove(tmp_path, CONTRACTS[name](), bounded=BOUNDED[name], induction=0)


@pytest.mark.parametrize(("name", "old", "new"), MUTANTS)
def test_mutant_violates_contract(tmp_path: Path, name: str, old: str, new: str) -> None:
    source, mutant = inspect.getsource(unpacker), ModuleType("mutant")
    assert source.count(old) == 1
    exec(compile(source.replace(old, new), unpacker.__file__, "exec"), mutant.__dict__)
    with pytest.raises(AssertionError, match=r"DONE \(FAIL"):
        prove(tmp_path, CONTRACTS[name](mutant), bounded=BOUNDED[name], induction=0)
