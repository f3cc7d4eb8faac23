"""Proofs about the expansion of packed weights with yowasp-sby and z3; each proof fails for a mutant.

The proof of the values takes minutes and is in `tests/soak/test_proofs.py`.
"""

import inspect
from pathlib import Path
from types import ModuleType

import pytest

from hw.config import MlaConfig
from hw.units.load import unpacker, writer
from tests.formal.prover import prove
from tests.formal.unpacker_contracts import CONFIG, CONTRACTS, WIDE, WriteContract

#: Numbers of cycles after reset in which the groups are checked, since they depend on the history of a line. A group
#: leaves in the fourth cycle at the earliest.
#: `WriteContract` holds for as many items as are accepted in 7 cycles; the component stores three.
BOUNDED = {"write": 7, "count": 7, "value": 5, "held": 8}
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


@pytest.mark.parametrize("config", [CONFIG, WIDE], ids=["narrow", "wide"])
def test_items_are_written_once(tmp_path: Path, config: MlaConfig) -> None:
    prove(tmp_path, WriteContract(config=config), bounded=BOUNDED["write"], induction=0)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("go & expands & ~item.bad & ~self.clear", "may & expands & ~item.bad & ~self.clear"),
        (
            "Mux(go & ~item.bad & ~self.clear, item.kept, 0)",
            "Mux(may & ~self.clear, entry.o.payload.kept, 0)",
        ),
        ("waiting_end & port.ready", "waiting_end"),
    ],
)
def test_mutant_writes_otherwise(tmp_path: Path, old: str, new: str) -> None:
    source, mutant = inspect.getsource(writer), ModuleType("mutant")
    assert source.count(old) == 1
    exec(compile(source.replace(old, new), writer.__file__, "exec"), mutant.__dict__)
    with pytest.raises(AssertionError, match=r"DONE \(FAIL"):
        prove(tmp_path, WriteContract(mutant), bounded=BOUNDED["write"], induction=0)
