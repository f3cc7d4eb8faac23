"""Random entries for the database."""

import random
from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np

from compiler.api import compile
from compiler.cache.digest import name
from compiler.options import DramTiming
from compiler.profile.measurement import HardwareProfile, LayerCycles, Measurement, Rejected, Result
from compiler.runtime.compiled import CompiledNetwork
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning_db.entries import Entry, EntryKey, Execution, Profile, TrialEntry
from hw.config import MlaConfig, load_target
from tests.support.graphs import Draft

SECRET, OTHER_SECRET = b"s" * 32, b"o" * 32
TARGETS = ("n4", "n8", "n16", "n32")

#: Version of the keys of the fixtures (`compiler.tuning_db.entries.KEY_VERSION` of commit 077e149).
FIRST_KEY_VERSION = "288a098a94dd4e6e116e6d07ddec81f3eb4418d667f2af56544a58cb765d4334"


@cache
def network(seed: int = 0, target: str = "n8") -> CompiledNetwork:
    """Return a small compiled network."""
    draft = Draft(np.random.default_rng(seed))
    hidden = draft.node("dense", [draft.input((1, 8)), draft.constant((12, 8))], (1, 12))
    draft.graph.finish([draft.node("dense", [hidden, draft.constant((4, 12))], (1, 4)).name])
    return compile(draft.graph, target)


def key(subgraph: object = 0, profile: object = 0, options: object = 0) -> EntryKey:
    """Return a key with the digests of arbitrary values."""
    return EntryKey(name("subgraph", subgraph), name("profile", profile), name("options", options))


def layer_schedule(rng: random.Random) -> LayerSchedule:
    """Return a random schedule of a layer."""
    made = {}
    for item in fields(LayerSchedule):
        if isinstance(item.default, bool):
            made[item.name] = rng.random() < 0.5
        elif isinstance(item.default, int):
            made[item.name] = rng.randrange(1, 200)
    return LayerSchedule(**made, order=rng.choice(["rows", "channels"]))


def schedule(rng: random.Random) -> Schedule:
    """Return a random schedule of a network with some of the nodes a, b, c, d."""
    fusions = ((("a", "b"),), ())[rng.randrange(2)]
    return Schedule(fusions, {node: layer_schedule(rng) for node in rng.sample("abcd", rng.randrange(5))})


def result(cycles: int = 1, **others: Any) -> Measurement:
    """Return a measurement with the given cycles and default values."""
    plain = Measurement(cycles, (), energy_uj=0.0, dram_bytes=0, exact=True, floor=0)
    return replace(plain, **others)


def measurement(rng: random.Random) -> Measurement:
    """Return a random plausible measurement."""
    cycles = rng.randrange(1, 1 << rng.randrange(1, 40))
    part = rng.randrange(cycles + 1)
    layers = (
        LayerCycles(("a", "b\u00e9\ud800"), part, {"useful": part}),
        LayerCycles(("c",), cycles - part, {"useful": 0, "idle": cycles - part}),
    )
    return Measurement(
        cycles, layers, rng.random() * 1000, rng.getrandbits(30), True, rng.randrange(cycles + 1)
    )


def trial(rng: random.Random, where: EntryKey, *, good: bool = False) -> TrialEntry:
    """Return a random trial."""
    made: Result = measurement(rng)
    others = (
        replace(made, exact=False),
        replace(made, floor=made.cycles + 1),
        Rejected("trap", "BUS_READ at 3"),
    )
    if not good and rng.random() < 0.4:
        made = rng.choice(others)
    plan = schedule(rng) if rng.random() < 0.5 else layer_schedule(rng)
    return TrialEntry(
        key=where,
        schedule=plan,
        result=made,
        seed=rng.randrange(-5, 1 << 40),
        method=rng.choice(["random", "hpm"]),
        generator="tilings",
        when=rng.random() * 1e9,
    )


def execution(rng: random.Random, where: EntryKey) -> Execution:
    """Return a random execution."""
    cycles = rng.randrange(1, 1 << 30)
    return Execution(
        key=where,
        when=rng.random() * 1e9,
        cycles=cycles,
        utilization=rng.random(),
        where={"useful": cycles},
        load_bytes=rng.getrandbits(20),
        store_bytes=rng.getrandbits(20),
        conflicts=rng.getrandbits(10),
        reuse=rng.random() * 100,
        energy_uj=rng.random(),
        bound=rng.choice(["compute", "bus"]),
    )


def conditions(rng: random.Random) -> HardwareProfile:
    """Return a random machine with a random memory."""
    config: MlaConfig = load_target(rng.choice(TARGETS))
    if rng.random() < 0.5:
        config = replace(config, sp_bytes=config.sp_bytes // 2, queue_depth=rng.randrange(2, 17))
    return HardwareProfile(config, DramTiming(rng.randrange(1, 500), rng.choice([4.0, 2.5, 16.0])))


def profile(rng: random.Random) -> Profile:
    """Return a random hardware profile."""
    return Profile(conditions=conditions(rng), behaviour={"bus": rng.random()}, when=rng.random() * 1e9)


def entry(where: EntryKey, cost: float = 1000.0, seed: int = 0, target: str = "n8") -> Entry:
    """Return an entry with the program of a small network."""
    made = network(seed, target)
    return Entry(
        key=where,
        schedule=made.schedule,
        cost=cost,
        result=result(int(cost)),
        codes=tuple(made.codes),
        when=5.0,
    )


def same(one: Entry, other: Entry) -> bool:
    """Return True if two entries are equal, including every bit of their programs."""
    if (one.key, one.schedule, one.cost, one.result, one.when) != (
        other.key,
        other.schedule,
        other.cost,
        other.result,
        other.when,
    ):
        return False
    return len(one.codes) == len(other.codes) and all(
        (a.config, a.parts, a.tags, a.memory, a.operand_numbers)
        == (b.config, b.parts, b.tags, b.memory, b.operand_numbers)
        and [part.program.signature for part in a.parts] == [part.program.signature for part in b.parts]
        and a.image.tobytes() == b.image.tobytes()
        for a, b in zip(one.codes, other.codes, strict=True)
    )
