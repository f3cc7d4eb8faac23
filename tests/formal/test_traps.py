"""Proofs that commands in modes that a machine lacks trap, with yowasp-sby and z3; a proof fails for a mutant.

The proofs of MATRIX, and of modes that the machine has, but that conflict with each other, are in
`tests/soak/test_proofs.py`.
"""

from pathlib import Path

import pytest

from hw.config import MlaConfig
from hw.isa.enums import Unit
from hw.sequencer import issue
from tests.formal.prover import prove
from tests.formal.test_matrix import mutant
from tests.formal.trap_contracts import LATENCY, ModeContract

#: Machine without packed loads.
NO_PACKED = MlaConfig(n=4, packed_loads=0)


def test_illegal_mode_traps(tmp_path: Path) -> None:
    prove(tmp_path, ModeContract(NO_PACKED, Unit.LOAD), bounded=LATENCY + 1, induction=0)


def test_mutant_violates_contract(tmp_path: Path) -> None:
    source = mutant(issue, "bad_command.eq(broken.bit_select(self.unit, 1))", "bad_command.eq(0)")
    with pytest.raises(AssertionError, match=r"DONE \(FAIL"):
        prove(tmp_path, ModeContract(NO_PACKED, Unit.LOAD, source), bounded=LATENCY + 1, induction=0)
