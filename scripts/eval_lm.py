"""Evaluation of a language model by the measured cost of single answers about held-out layers."""

from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from compiler.cache.digest import name as digest
from compiler.llm.data.held_out import MACHINES
from compiler.llm.evaluation import Sampled, figures, held_out_points, sampled
from compiler.llm.model.weights import load
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork
from compiler.tuning.measure.measurer import Measurer
from hw.errors import WorkError
from scripts.jsonl_log import JsonlLog
from scripts.process_pool import run_parallel

_MACHINE, _SEED = "usual", 0


@dataclass(frozen=True)
class _Job:
    """Evaluation of answers about one layer.

    Parameters
    ----------
    key : str
        Key of the result.
    index : int
        Index of the layer.
    point : CalibrationNetwork
        Network that consists of the layer.
    samples : int
        Number of answers.
    """

    key: str
    index: int
    point: CalibrationNetwork
    samples: int


def evaluate_model(model: Path, layers: int, samples: int, workers: int, file: Path) -> dict[str, Any]:
    """Measure answers of a model about held-out layers, which are the same in every call.

    Parameters
    ----------
    model : Path
        Model file to evaluate.
    layers, samples, workers : int
        Number of layers, of answers per layer, and of parallel processes.
    file : Path
        JSONL file of finished layers, from which an interrupted evaluation continues.

    Returns
    -------
    dict
        Result of `compiler.llm.evaluation.figures`, and the results of all layers.

    Raises
    ------
    WorkError
        A worker process died.
    """
    machine, model_digest = MACHINES[_MACHINE], digest(model.read_bytes())[:12]
    points = islice(held_out_points(machine.conditions.config.n, _SEED, machine), layers)
    jobs = [
        _Job(f"{model_digest} {index} {samples}", index, point, samples) for index, point in enumerate(points)
    ]
    done = {row["key"] for row in JsonlLog(file).read()}
    run_parallel(_evaluate, [job for job in jobs if job.key not in done], workers, model, file)
    rows = {row["key"]: Sampled(**row["sampled"]) for row in JsonlLog(file).read()}
    if missing := [job for job in jobs if job.key not in rows]:
        raise WorkError(
            f"{file}: {len(missing)} layers were not evaluated; run the same command again to continue"
        )
    found = [rows[job.key] for job in jobs]
    return figures(found) | {"layers": [asdict(each) for each in found]}


def _evaluate(job: _Job, model: Path, file: Path) -> None:
    machine = MACHINES[_MACHINE]
    with Measurer(job.point.graph(), machine.conditions, machine.options, 1, _SEED) as measurer:
        found = sampled(measurer, job.point.family, load(model)[0], job.samples, job.index)
    JsonlLog(file).add({"key": job.key, "sampled": asdict(found)})
