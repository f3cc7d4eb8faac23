"""Proofs about the reciprocal units with yowasp-sby and z3; each proof fails for a mutant."""

import inspect
from pathlib import Path
from types import ModuleType

import pytest

from hw.config import MlaConfig
from hw.fuse import reciprocal
from tests.formal.prover import prove
from tests.formal.reciprocal_contracts import CONTRACTS, LONGEST, ONE, WIDTH

FOUR = MlaConfig(n=4, reciprocal_units=4)
#: The values depend on the history of a unit, so they are checked only in the first cycles after reset, in which a unit
#: computes twice. The other contracts are proved by induction.
BOUNDED = {"value": 2 * LONGEST + 5}
INDUCTION = {"answered": LONGEST + 3}
_DONE = '\n                    m.next = "done"'
#: For each contract, a piece of the source and its replacement that violates the contract.
MUTANTS = {
    "none_lost": ("oldest.eq(oldest + self.taken)", "oldest.eq(oldest + self.done)"),
    "order": ("first.eq(first + self.start)", "first.eq(first - self.start)"),
    "held": ("with m.If(self.taken):", "with m.If(self.done):"),
    "answered": (f"with m.If(count == 0):{_DONE}", f"with m.If(self.taken):{_DONE}"),
    "value": ("Mux(self.x < 1, 1, self.x)", "self.x"),
}


def mutant(old: str, new: str) -> ModuleType:
    """Return the module with one piece of its source replaced."""
    source, module = inspect.getsource(reciprocal), ModuleType("mutant")
    assert source.count(old) == 1
    exec(compile(source.replace(old, new), reciprocal.__file__, "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("name", CONTRACTS)
def test_reciprocal_contract(tmp_path: Path, name: str) -> None:
    prove(
        tmp_path,
        CONTRACTS[name](reciprocal),
        bounded=BOUNDED.get(name),
        induction=INDUCTION.get(name, 2),
    )


@pytest.mark.parametrize("name", CONTRACTS)
def test_mutant_violates_contract(tmp_path: Path, name: str) -> None:
    units = ONE if name in ("answered", "value") else FOUR
    contract = CONTRACTS[name](mutant(*MUTANTS[name]), config=units, width=WIDTH)
    with pytest.raises(AssertionError, match=r"DONE \(FAIL"):
        prove(tmp_path, contract, bounded=BOUNDED["value"], induction=0)
