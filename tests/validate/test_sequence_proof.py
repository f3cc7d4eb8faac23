"""Proofs of known call sequences equal the results of exploring the calls, and never accept unsafe calls."""

import random
from dataclasses import replace

import numpy as np
import pytest

from compiler.api import compile
from compiler.runtime.compiled import CompiledNetwork
from compiler.util.lru_cache import LruCache
from compiler.validate import MacroCall, ValidationError
from compiler.validate.call_trace import Log
from compiler.validate.explore import followed
from compiler.validate.footprint import region
from compiler.validate.macro_call import CallStream
from compiler.validate.races import in_order
from compiler.validate.sequence_proof import proved
from cosim.semantics.command_checks import DramWindow
from hw.config import MlaConfig
from hw.isa.enums import Unit
from hw.isa.program import Program
from tests.support.small_network import two_convolutions
from tests.validate.mutate import mutants

LIMIT = 1 << 16
SLOTS = 3


@pytest.fixture(scope="module")
def network() -> CompiledNetwork:
    return compile(two_convolutions(), "n4")


def placed(network: CompiledNetwork, base: int, ends: int) -> tuple[list[MacroCall], list[DramWindow]]:
    """Return calls for several requests, with the model's memory, inputs and outputs at given addresses."""
    (stage,) = network.stages
    assert stage.code is not None
    calls, at = [], ends
    for _ in range(SLOTS):
        operands = [base]
        for tensor in (*stage.inputs, *stage.outputs):
            operands.append(at)
            at += -(-tensor.bytes // 64) * 64
        calls += [MacroCall(part.program, tuple(operands)) for part in stage.code.parts]
    return calls, [(base, base + stage.code.memory - 1, 3), (ends, at - 1, 3)]


def with_program(calls: list[MacroCall], number: int, program: Program) -> list[MacroCall]:
    old = calls[number].program
    return [replace(call, program=program) if call.program is old else call for call in calls]


def stream(
    config: MlaConfig, calls: list[MacroCall], windows: list[DramWindow], limit: int = LIMIT
) -> CallStream:
    return CallStream(config, calls, windows, (), limit)


@pytest.mark.parametrize(("base", "ends"), [(0, 1 << 16), (1 << 20, 0), (0xFFF0_0000, 64)])
def test_report_equals_that_of_following_the_calls(network, base, ends):
    calls, windows = placed(network, base, ends)
    known = proved(stream(network.config, calls, windows))
    assert known is not None and known == followed(stream(network.config, calls, windows))
    assert known.commands["matrix"] > 0 and known.regions["dram"]["write"]


def test_memory_of_known_sequences_is_checked(network):
    """A known sequence is rejected if windows or memory do not permit its accesses."""
    calls, windows = placed(network, 0, 1 << 16)
    assert proved(stream(network.config, calls, windows))
    (base, end, _), ends = windows
    wrong = [
        (calls, [(base, end, 2), ends]),
        (calls, [windows[0]]),
        (calls, [windows[0], (ends[0], ends[1], 1)]),
        placed(network, 0, 64),  # input and output of a request in the model's memory
        (
            [replace(call, operands=(0xFFFF_FFC0, *call.operands[1:])) for call in calls],
            [(0, (1 << 32) - 1, 3)],
        ),
    ]
    for bad, where in wrong:
        assert proved(stream(network.config, bad, where)) is None
    with pytest.raises(ValidationError) as caught:
        followed(stream(network.config, calls, [windows[0]]))
    assert caught.value.kind == "window"


def test_limit_applies_to_known_sequences(network):
    calls, windows = placed(network, 0, 1 << 16)
    assert proved(stream(network.config, calls, windows)) is not None
    assert proved(stream(network.config, calls, windows, limit=5)) is None


@pytest.mark.parametrize("seed", range(4))
def test_mutants_are_known_as_safe_only_if_they_are(network, seed):
    rng = random.Random(seed)
    calls, windows = placed(network, 0, 1 << 16)
    (stage,) = network.stages
    assert stage.code is not None
    harmful = known = 0
    for number, part in enumerate(stage.code.parts):
        for way, program in mutants(rng, part.program, 40):
            damaged = with_program(calls, number, program)
            report = proved(stream(network.config, damaged, windows))
            try:
                expected = followed(stream(network.config, damaged, windows))
            except ValidationError:
                harmful += 1
                assert report is None, (seed, number, way)
            else:
                known += report is not None
                assert report in (None, expected), (seed, number, way)
    assert harmful > 10 and known > 0


def log(accesses: list[tuple[int, set[int]]]) -> Log:
    """Return a log of accesses, each given as a command index and a set of evenly spaced addresses."""
    regions = []
    for _, touched in accesses:
        low, step = min(touched), sorted(touched)[1] - min(touched) if len(touched) > 1 else 1
        regions.append(region("sp", low, [(len(touched), step)], 1))
    return Log(
        np.array([number for number, _ in accesses]),
        np.array([r.low for r in regions]),
        np.array([r.high for r in regions]),
        regions,
    )


@pytest.mark.parametrize("seed", range(200))
def test_order_equals_pairwise_comparison(seed):
    rng = random.Random(seed)
    count = 6
    clocks = []
    for unit in Unit:
        rows = np.sort(np.array([[rng.randint(0, count) for _ in Unit] for _ in range(count)]), axis=0)
        rows[:, unit] = np.minimum(rows[:, unit], np.arange(count))
        clocks.append(rows)
    kinds = [
        (Unit.LOAD, "sp", True),
        (Unit.MATRIX, "sp", False),
        (Unit.FUSE, "sp", False),
        (Unit.FUSE, "sp", True),
    ]
    accesses = {}
    for kind in kinds:
        numbers = sorted(rng.choices(range(count), k=rng.randint(1, 4)))
        accesses[kind] = []
        for number in numbers:
            low, step = rng.randrange(400), rng.randint(1, 3)
            accesses[kind].append((number, set(range(low, low + step * rng.randint(1, 4), step))))
    clash = False
    for one, mine in accesses.items():
        for other, its in accesses.items():
            for a, touched in mine:
                for b, also in its:
                    if not touched & also or not (one[2] or other[2]):
                        continue
                    if one[0] == other[0]:
                        # a read after a write, without a clock that includes the write
                        clash |= not one[2] and other[2] and clocks[one[0]][a, one[0]] <= b < a
                    else:
                        clash |= bool(clocks[one[0]][a, other[0]] <= b and clocks[other[0]][b, one[0]] <= a)
    assert in_order({kind: log(each) for kind, each in accesses.items()}, clocks) == (not clash), seed


def test_weight_of_the_cache_is_bounded():
    kept: LruCache[str] = LruCache(10)
    for number in range(8):
        kept.put(number, str(number), 3)
        kept.get(0)
    assert kept.weight <= 10 and kept.get(0) == "0" and kept.get(7) == "7" and kept.get(3) is None
    kept.put(0, "again", 4)
    assert kept.get(0) == "again" and kept.weight <= 10
    kept.put(1, "too much", 11)
    assert kept.get(1) is None and len(kept) == 3
