"""How good a language model is: what its single answers about layers that it has never seen cost."""

from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from compiler.cache.digest import name as digest
from compiler.llm.data.machines import MACHINES
from compiler.llm.evaluate.race import held_out_points
from compiler.llm.evaluate.sample_quality import Sampled, figures, sampled
from compiler.llm.model.weights import load
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork
from compiler.tuning.measure.measurer import Measurer
from hw.errors import WorkError
from scripts.jsonl_log import Lines
from scripts.process_pool import in_lanes

_MACHINE, _SEED = "usual", 0


@dataclass(frozen=True)
class _Job:
    """Answers about one layer.

    Parameters
    ----------
    key : str
        What they are known by.
    place : int
        The layer's.
    point : Point
        The layer.
    samples : int
        Answers.
    """

    key: str
    place: int
    point: CalibrationNetwork
    samples: int


def judged(model: Path, layers: int, samples: int, lanes: int, file: Path) -> dict[str, Any]:
    """Measure so many answers about each of some layers: always the same ones.

    Parameters
    ----------
    model : Path
        Who is asked.
    layers, samples, lanes : int
        How many; processes at the same time.
    file : Path
        Keeps what is done, a line for a layer, and is gone on with.

    Returns
    -------
    dict
        Figures as of `compiler.llm.evaluate.sample_quality.figures`, and all layers.

    Raises
    ------
    WorkError
        A process that judged died.
    """
    machine, mine = MACHINES[_MACHINE], digest(model.read_bytes())[:12]
    points = islice(held_out_points(machine.conditions.config.n, _SEED, machine), layers)
    jobs = [_Job(f"{mine} {place} {samples}", place, point, samples) for place, point in enumerate(points)]
    done = {row["key"] for row in Lines(file).read()}
    in_lanes(_judge, [job for job in jobs if job.key not in done], lanes, model, file)
    rows = {row["key"]: Sampled(**row["sampled"]) for row in Lines(file).read()}
    if missing := [job for job in jobs if job.key not in rows]:
        raise WorkError(f"{file}: {len(missing)} layers were not judged; the same call goes on")
    found = [rows[job.key] for job in jobs]
    return figures(found) | {"layers": [asdict(each) for each in found]}


def _judge(job: _Job, model: Path, file: Path) -> None:
    machine = MACHINES[_MACHINE]
    with Measurer(job.point.graph(), machine.conditions, machine.options, 1, _SEED) as measurer:
        found = sampled(measurer, job.point.family, load(model)[0], job.samples, job.place)
    Lines(file).add({"key": job.key, "sampled": asdict(found)})
