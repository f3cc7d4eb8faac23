"""Networks with equal layers and other weights, and databases of what a search would have learned about them."""

import random
from dataclasses import replace
from pathlib import Path

from compiler.options import CompileOptions
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import HardwareProfile, LayerCycles, Measurement
from compiler.runtime.compiled import CompiledNetwork
from compiler.schedule.schedule import Schedule
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from compiler.tuning.edits.edit import Edit, draw_edits
from compiler.tuning.edits.editable_programs import EditablePrograms, templates_of
from compiler.tuning_db.database import TuningDatabase
from compiler.tuning_db.session import DatabaseSession
from hw.config import load_target
from hw.errors import InputError

#: Two networks that share their first two layers, which have other weights in the second one.
FIRST = CalibrationNetwork((8, 8, 8), (CalibrationOp("conv", 12, 3), CalibrationOp("conv", 8)))
OTHER = CalibrationNetwork(
    (8, 8, 8), (CalibrationOp("conv", 12, 3), CalibrationOp("conv", 8), CalibrationOp("mean"))
)


def prepared(point: CalibrationNetwork, seed: int, target: str = "n4") -> ModelCompiler:
    """Return the compiler of a network whose weights depend on the seed."""
    return ModelCompiler(point.graph(seed), load_target(target), CompileOptions(rounding="reference"))


def edited(compiler: ModelCompiler, rng: random.Random) -> Schedule:
    """Return the static compiler's schedule with random edits, also of the first layer's commands."""
    network = compiler.network()
    programs, first = EditablePrograms(network), network.infos[0].name
    while True:
        edits: dict[str, list[Edit]] = {}
        for program in programs.programs:
            commands, made = list(program.unrolled.commands), []
            for _ in range(rng.randint(1, 4)):
                if (found := draw_edits(programs.config, commands, rng)) is not None:
                    made.append(found[0])
                    commands = found[1]
            edits[program.name] = made
        try:
            schedule = programs.with_edits(edits)
        except InputError:
            continue
        if schedule.programs and first in templates_of(compiler, schedule):
            return schedule


def measurement(network: CompiledNetwork, cycles: int) -> Measurement:
    """Return a measurement in which every layer takes the given number of cycles."""
    layers = tuple(LayerCycles((info.name,), cycles, {}) for info in network.infos)
    return Measurement(cycles * len(layers), layers, energy_uj=1.0, dram_bytes=1, exact=True, floor=0)


def learn(database: TuningDatabase, compiler: ModelCompiler, schedule: Schedule, cycles: int = 90) -> None:
    """Store a schedule as a search does that has measured it; the static compiler's takes 100 cycles per layer."""
    session = DatabaseSession(database, compiler, HardwareProfile(compiler.machine), "latency", "edits")
    network = compiler.network(schedule)
    assert session.put_best(
        schedule,
        measurement(network, cycles),
        cycles,
        compiler.network,
        measurement(network, 100),
        lambda chosen: templates_of(compiler, chosen),
    )


def fill(file: str | Path, seed: int = 1, tool: random.Random | None = None, cycles: int = 90) -> None:
    """Fill a database with what was learned about the first network, whose layers take the given cycles."""
    compiler = prepared(FIRST, seed)
    with TuningDatabase(file) as database:
        learn(database, compiler, edited(compiler, tool or random.Random(seed)), cycles)


def without_texts(schedule: Schedule) -> Schedule:
    """Return a schedule without program texts."""
    return replace(schedule, programs={})
