"""Symbols of dataflow: equal however a reduction is divided, and different if it reads other elements."""

import pytest

from compiler.tuning.measure.equivalence import PlainPrograms
from cosim.golden.dataflow import DataflowMachine
from cosim.golden.symbols import SymbolMachine
from tests.support.cheating_programs import (
    LAYERS,
    WIDE_LAYERS,
    Cheat,
    CheatingPrograms,
    divided_maximum,
    other_elements,
)


def plain_programs(programs: CheatingPrograms) -> PlainPrograms:
    return PlainPrograms(programs.prepared, programs.network.schedule, 0)


def equal(plain: PlainPrograms, cheat: Cheat | None, kind: type[SymbolMachine]) -> bool:
    assert cheat is not None
    return not list(plain.unequal(plain.observe(cheat.network, [0], False), kind))


def test_the_division_of_a_maximum_does_not_matter() -> None:
    programs = CheatingPrograms("softmax 1x1x200", inputs=1)
    plain = plain_programs(programs)
    for name, texts, right in divided_maximum(programs):
        cheat = programs.cheat(name, texts)
        assert equal(plain, cheat, DataflowMachine) == right, name
        assert not equal(plain, cheat, SymbolMachine), name


@pytest.mark.parametrize("layer", [*LAYERS, *WIDE_LAYERS])
def test_other_elements_give_other_symbols(layer: str) -> None:
    programs, found = CheatingPrograms(layer, inputs=1), 0
    plain = plain_programs(programs)
    assert not list(plain.unequal(plain.run(0, False), DataflowMachine))
    for name, texts in programs.changes(other_elements):
        cheat = programs.cheat(name, texts)
        if cheat is not None:  # safe
            assert not equal(plain, cheat, DataflowMachine), name
            found += 1
    assert found
