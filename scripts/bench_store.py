"""Measurement of the latency of the tuning database, from a key to a runnable program.

`python -m scripts.bench_store [--db URL]` stores one layer and the small trained networks in a database (by default a
new one), and measures the time to open the database, to find an entry, to obtain its runnable program with a cached
proof (from the database and from memory), to store a measurement, and to find the best known schedules of a network and
its layers (from the database and from memory). The targets apply to a computer with two idle
cores.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from compiler.api import compile
from compiler.bench.single_layer import conv_case
from compiler.bench.tiny import model_path
from compiler.cache.content_store import ContentStore
from compiler.cache.digest import version
from compiler.ir.graph import Graph
from compiler.profile.measurement import HardwareProfile, Measurement
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import Session, dram_bytes
from compiler.tuning_db.connection import file_of
from compiler.tuning_db.database import TuningDatabase
from compiler.tuning_db.entries import BestKeys, Entry, EntryKey, TrialEntry, options_of, subgraph_of
from compiler.tuning_db.known_schedules import KnownSchedules
from compiler.tuning_db.macro_instructions import MacroInstruction, MacroPart
from compiler.tuning_db.program_cache import Placement, ProgramCache
from compiler.util.progress import progress
from compiler.util.tables import Column, figures, format_table
from cosim.golden import GoldenDevice

LAYER = "14x14x64-64-3-1"
NETWORKS = ("ad01_int8", "kws_ref_model", "pretrainedResnet_quant", "vww_96_int8")
#: Targets in milliseconds: from the database to a runnable program, and from memory.
DATABASE_BAR, MEMORY_BAR = 5.0, 0.05
#: Number of repetitions, of whose times medians are reported.
_TIMES = 101


def milliseconds(work: Callable[[], object], times: int = _TIMES) -> float:
    """Return the median time of a call in milliseconds."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return 1000 * statistics.median(taken)


def measure(url: str, network: CompiledNetwork, proofs: ContentStore) -> tuple[int, list[float]]:
    """Return the size of a network's entry in bytes, and the times in milliseconds."""
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        placement = Placement.of_session(Session(device, network, proofs=proofs))
    assert isinstance(network.graph, Graph)
    options = options_of(rounding=network.rounding, batch=network.batch)
    key = EntryKey(subgraph_of(network.graph), HardwareProfile(network.config).key, options)
    entry = Entry(
        key=key,
        schedule=network.schedule,
        cost=1.0,
        result=Measurement(1, (), 0.0, 0, True, 0),
        codes=tuple(network.codes),
    )
    trial = TrialEntry(key=key, schedule=network.schedule, result=entry.result)
    with TuningDatabase(url) as database:
        database.put_best(entry)
        memory = ProgramCache(database, proofs)

        def runnable() -> None:
            memory.forget()
            if memory.runnable(key, placement) is None:
                raise SystemExit("the program is not in the database")

        times = [milliseconds(lambda: database.best(key)), milliseconds(runnable)]
        times.append(milliseconds(lambda: memory.runnable(key, placement), 1001))
        times.append(milliseconds(lambda: database.add_measurement(trial), 21))
        shapes = tuple(info.shape for info in network.infos)
        macros = [
            MacroInstruction(
                key=replace(key, subgraph=info.shape),
                parts=(MacroPart(shape=info.shape, schedule=network.schedule.layers[info.name]),),
                machine=key.profile,
                before="",
                after="",
                network=key.subgraph,
                cycles=1,
                static_cycles=1,
            )
            for info in network.infos
        ]
        database.put_macros(macros)
        known = KnownSchedules(database, file_of(url), max_networks=0)
        times.append(milliseconds(lambda: known.entries([BestKeys(key, key)], [key], shapes)))
        known = KnownSchedules(database, file_of(url))
        times.append(milliseconds(lambda: known.entries([BestKeys(key, key)], [key], shapes), 1001))
    times.append(milliseconds(lambda: TuningDatabase(url).close(), 11))
    return entry.bytes, times


def main() -> int:
    """Print the table; return status 1 if a target is missed."""
    parser = argparse.ArgumentParser(
        description="Measure the time in milliseconds from a key to a runnable program."
    )
    parser.add_argument("--db", metavar="URL", help="database (default: a new SQLite database)")
    url = parser.parse_args().db
    version()  # computes the digest of the sources, once per process
    heads = ("bytes", "hit", "proved", "memory", "keep", "known", "kept", "open")
    rows, met = [], True
    with tempfile.TemporaryDirectory(prefix="mla-store-") as folder:
        proofs = ContentStore(Path(folder))
        layer = conv_case(LAYER).prepare(np.random.default_rng(0)).model
        for name, model in [(LAYER, layer), *((name, model_path(name)) for name in NETWORKS)]:
            with progress(f"measuring {name}"):
                network = compile(model, cache=False)
                size, times = measure(url or f"sqlite:///{folder}/profile.db", network, proofs)
            rows.append([name, f"{size:,}", *(f"{each:.3f}" for each in times)])
            met = met and max(times[1], times[4]) < DATABASE_BAR and max(times[2], times[5]) < MEMORY_BAR
    print(format_table([Column("milliseconds"), *figures(*heads)], rows))
    bars = f"proved and known under {DATABASE_BAR} ms, memory and kept under {MEMORY_BAR} ms"
    print(f"targets: {bars}: {'met' if met else 'not met'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
