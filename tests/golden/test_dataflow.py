"""Symbols of dataflow: equal however a reduction is divided, and different if it reads other elements."""

import numpy as np
import pytest

from compiler.options import CompileOptions
from compiler.pipeline import ModelCompiler
from compiler.tuning.measure.equivalence import PlainPrograms
from cosim.golden.command import Command
from cosim.golden.dataflow import DataflowMachine
from cosim.golden.symbols import SymbolMachine
from cosim.semantics.command_fields import default_fields, unpack_fields
from hw.config import load_target
from hw.isa.enums import Unit
from tests.codegen.test_wide_products import product
from tests.support.cheating_programs import (
    LAYERS,
    WIDE_LAYERS,
    Cheat,
    CheatingPrograms,
    divided_maximum,
    other_elements,
)
from tests.support.graphs import Draft


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


@pytest.mark.parametrize("mode", ["wide", "sparse"])
def test_a_network_in_wide_or_sparse_mode_has_symbols(mode: str) -> None:
    graph = product(Draft(np.random.default_rng(0)), 9, 64, 40, mode)
    compiler = ModelCompiler(graph, load_target("n8"), CompileOptions(rounding="reference"))
    plain = PlainPrograms(compiler, compiler.network().schedule, 0)
    for kind in (DataflowMachine, SymbolMachine):
        assert not list(plain.unequal(plain.run(0, False), kind))


def sums(commands: list[dict[str, int]]) -> np.ndarray:
    """Return the symbols of the first accumulator rows after MATRIX commands with the given fields."""
    machine = DataflowMachine(load_target("n8"), 1 << 12)
    made = []
    for fields in commands:
        config = unpack_fields(Unit.MATRIX, default_fields(Unit.MATRIX))
        shape = {"w_row": 8, "w_base": 1 << 12, "x_count": 3, "a_v": 64, "acc_x": 1}
        vars(config).update(shape | fields)
        made.append(Command(Unit.MATRIX, config))
    machine.run(made)
    return machine.acc[:3]


@pytest.mark.parametrize(("mode", "rows"), [("wide", 8), ("sparse", 10)])
def test_a_reduction_in_wide_or_sparse_mode_may_be_divided(mode: str, rows: int) -> None:
    """A command for two tiles adds the same sums as a command for each; other tiles, activations, numbers of weight
    rows and modes give other sums.
    """
    tile, second = {mode: 1}, {"w_base": (1 << 12) + 8 * rows, "a_base": 16}
    both = sums([tile | {"ic_count": 2, "w_ic": 8 * rows, "a_ic": 16}])
    divided = [tile, tile | {"accumulate": 1}]
    assert (both == sums([divided[0], divided[1] | second])).all()
    assert (both == sums([divided[0] | second, divided[1]])).all()
    others: list[dict[str, int]] = [
        {"w_base": second["w_base"]},
        {"a_base": 16},
        second,
        second | {"k_tail": 7},
    ]
    for other in (*others, second | {"scaled": 1}, second | {mode: 0}):
        alone = sums([tile | other])
        assert (sums([tile, tile | other | {"accumulate": 1}]) == both).all() == (other == second)
        assert not (alone == sums([tile])).any()


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
