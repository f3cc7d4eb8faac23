"""The static validator accepts valid random programs, and all programs that it accepts are safe."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

import pytest

from compiler.validate import MacroCall, ValidationError, validate
from cosim.golden import GoldenDevice
from hw.config import load_target
from hw.isa.program import Program
from tests.support.program_gen.generator import DATA, DRAM_BYTES, IMAGES, STEP_LIMIT, Case, generate
from tests.support.program_gen.items import Stop
from tests.support.program_gen.run import Outcome, difference, execute
from tests.validate.mutate import mutants
from tests.validate.race_oracle import WitnessedDevice

WINDOWS = [(DATA, IMAGES - 1, 3)]
ORDERS = 5
TARGETS = ["n4", "n8", "n16", "n32"]


@dataclass
class Damaged(Case):
    """Test case with the given programs in place of the generated ones."""

    rendered: tuple[Program, list[Program]] = field(default_factory=lambda: (Program("", ()), []))

    def render(self) -> tuple[Program, list[Program]]:
        return self.rendered


def runs(case: Case) -> list:
    """Return the macro-instructions that run a program."""
    return [m for m in case.macros if m.header is None and not m.unbound and not m.invalid]


def traps(case: Case) -> bool:
    """Return True if the case contains an intended trap."""
    stops = any(isinstance(item, Stop) for m in runs(case) for item in case.programs[m.program].body)
    return stops or len(runs(case)) < len(case.macros)


def check(case: Case, library: Program, programs: list[Program]):
    calls = [MacroCall(programs[m.program], tuple(m.operands), m.tag) for m in runs(case)]
    return validate(case.config, calls, WINDOWS, pinned=[library], limit=STEP_LIMIT)


@pytest.mark.parametrize("target", TARGETS)
def test_good_programs_are_accepted_and_bad_ones_rejected(target):
    config, passed, ways, kinds = load_target(target), 0, 0, Counter()
    for seed in range(3000, 3060):
        case = generate(config, seed)
        library, programs = case.render()
        stops = any(isinstance(item, Stop) for m in runs(case) for item in case.programs[m.program].body)
        if not traps(case):
            report = check(case, library, programs)  # the case contains the seed, which pytest prints
            passed, ways = passed + 1, max(ways, report.paths)
        elif stops:
            with pytest.raises(ValidationError) as caught:
                check(case, library, programs)
            kinds[caught.value.kind] += 1
    assert passed > 15
    assert ways > 1
    assert len(kinds) > 5


def outcome(case: Case, order: int | None) -> Outcome:
    return execute(GoldenDevice(case.config, DRAM_BYTES, order), case)


@pytest.mark.parametrize("target", TARGETS)
def test_outcome_of_accepted_programs_does_not_depend_on_the_order(target):
    """Mutants that the validator accepts do not trap and have the same outcome for every order of unit steps."""
    check_orders(target, range(4000, 4040))


def check_orders(target: str, seeds: Iterable[int]) -> None:
    """Check the mutants of the random programs of these seeds, of which all kinds must be accepted and rejected.

    `tests/soak/test_validated_programs.py` checks those of more seeds.
    """
    config, passed, rejected = load_target(target), Counter(), Counter()
    for seed in seeds:
        case, rng = generate(config, seed), Random(seed)
        if traps(case):
            continue
        library, programs = case.render()
        number = rng.randrange(len(programs))
        for index, (way, program) in enumerate(mutants(rng, programs[number], 5)):
            some = [*programs[:number], program, *programs[number + 1 :]]
            try:
                check(case, library, some)
            except ValidationError as error:
                rejected[way] += 1
                assert error.location.instruction >= 0
                continue
            passed[way] += 1
            where = f"target={target} seed={seed} damage={index} ({way})"
            damaged = Damaged(**vars(case), rendered=(library, some))
            expected = outcome(damaged, None)
            assert not expected.traps, where
            for order in range(ORDERS):
                assert not difference(expected, outcome(damaged, order)), f"{where} order={order}"
    # Mutations of most fences and of half of the fields have no effect.
    assert {"wait", "signal", "new wait", "new signal", "any bit"} <= set(rejected)
    assert {"fence", "field", "other field"} <= set(passed)


@pytest.mark.parametrize("target", ["n4", "n16"])
def test_races_compared_with_an_oracle(target):
    """The oracle finds no race in accepted mutants, and finds one in over 80% of the mutants rejected for a race."""
    check_races(target, range(5000, 5080))


def check_races(target: str, seeds: Iterable[int]) -> None:
    """Compare the races of mutants of the random programs of these seeds with those that the oracle finds."""
    config, races, passed = load_target(target), [], 0
    device = WitnessedDevice(config, DRAM_BYTES)
    for seed in seeds:
        case, rng = generate(config, seed), Random(seed)
        if traps(case):
            continue
        library, programs = case.render()
        number = rng.randrange(len(programs))
        chosen = [(None, programs[number]), *mutants(rng, programs[number], 5, ("wait", "fence", "new wait"))]
        for index, (way, program) in enumerate(chosen):
            some = [*programs[:number], program, *programs[number + 1 :]]
            try:
                check(case, library, some)
                kind = ""
            except ValidationError as error:
                kind = error.kind
                if kind != "race":
                    continue
            found = execute(device, Damaged(**vars(case), rendered=(library, some)))
            race = device.machine.witness.race(config)
            if kind:
                races += [bool(race)] if not found.traps else []
                continue
            passed += 1
            assert not race, f"target={target} seed={seed} damage={index} ({way}): {race}"
    assert passed > 30
    assert sum(races) > 0.8 * len(races) > 4  # data select a single path, and some footprints are approximate
