"""Latency of the language model's candidates, and of programs stored in the database.

`python -m scripts.llm_latency --layers 40` measures, for held-out layers, the time to obtain one answer, the first
candidate of a search (from several answers sampled together), and the layer's program from the database and from
memory. Run the same command again to continue an interrupted run; `--only-render` only writes the table of existing
results to a .json and a .md file next to the results file. The computer must be otherwise idle.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from compiler.cache.content_store import ContentStore
from compiler.cache.digest import name as digest
from compiler.cache.digest import version
from compiler.llm.data.held_out import MACHINES, keys_of
from compiler.llm.evaluation import held_out_points
from compiler.llm.generate.lm_generator import LmGenerator
from compiler.llm.generate.requests import Schedules
from compiler.llm.generate.sampler import draw
from compiler.llm.model.numpy_transformer import Gpt
from compiler.llm.model.weights import SHIPPED, load
from compiler.llm.tokens.layer_prompt import subjects_of
from compiler.llm.tokens.vocabulary import LANGUAGE
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork
from compiler.tuning.generators.generator import GeneratorTask
from compiler.tuning.measure.measurer import Measurer
from hw.errors import InputError
from scripts.bench_store import measure
from scripts.jsonl_log import JsonlLog
from scripts.reports import write_report

#: Measured quantities, with the unit of each in the table and the length of this unit in seconds.
TIMED = {"answer": ("s", 1.0), "candidate": ("s", 1.0), "database": ("ms", 1e-3), "memory": ("ms", 1e-3)}
MACHINE = "usual"


def main() -> int:
    """Measure all layers and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument(
        "--times", type=int, default=3, help="number of prompts per layer, each with a different seed"
    )
    parser.add_argument("--llm", type=Path, default=SHIPPED, help="model file")
    parser.add_argument("--seed", type=int, default=0, help="random seed for the selection of layers")
    parser.add_argument("--file", type=Path, default=Path("build/llm_latency.jsonl"))
    parser.add_argument("--only-render", action="store_true")
    args = parser.parse_args()
    try:
        model = load(args.llm)[0]
    except InputError as error:
        parser.error(str(error))
    settings = f"{args.times} {digest(args.llm.read_bytes())[:12]}"
    keys = [f"{args.seed}.{number} {settings}" for number in range(args.layers)]
    if not args.only_render:
        _measure(keys, model, args)
    rows = {row["key"]: row for row in JsonlLog(args.file).read()}
    print(render([rows[key] for key in keys if key in rows], args.file))
    return 0


def _measure(keys: Sequence[str], model: Gpt, args: argparse.Namespace) -> None:
    """Measure the times of all layers without results."""
    version()  # computes the digest of the sources, once per process
    machine = MACHINES[MACHINE]
    done = {row["key"] for row in JsonlLog(args.file).read()}
    points = held_out_points(machine.conditions.config.n, args.seed, machine)
    for key, point in zip(keys, islice(points, len(keys)), strict=True):
        if key not in done:
            row = {"key": key, "layer": keys_of(point)[0], "cores": len(os.sched_getaffinity(0))}
            row |= times_of(point, model, args.times)
            JsonlLog(args.file).add(row)
            print(f"{row['layer']}: {median(row['candidate']):.2f} s", flush=True)


def times_of(point: CalibrationNetwork, model: Gpt, times: int) -> dict[str, list[float]]:
    """Return the measured times for a layer in seconds, by name of the quantity."""
    machine = MACHINES[MACHINE]
    with Measurer(point.graph(), machine.conditions, machine.options) as measurer:
        baseline, network = measurer.baseline(), measurer.first
        schedule = network.schedule
        tasks = [
            GeneratorTask(
                measurer.prepared, machine.conditions, schedule, tuple(schedule.layers), baseline, seed=seed
            )
            for seed in range(times)
        ]
    next(LmGenerator(model).propose(tasks[0]), None)  # excludes initialization that happens only once
    with tempfile.TemporaryDirectory(prefix="mla-latency-") as folder:
        _, (_, database, memory, *_) = measure(
            f"sqlite:///{folder}/programs.db", network, ContentStore(Path(folder))
        )
    return {
        "answer": [_seconds_of_answer(task, model) for task in tasks],
        "candidate": [_seconds_of_candidate(task, model) for task in tasks],
        "database": [database / 1000],
        "memory": [memory / 1000],
    }


def _seconds_of_answer(task: GeneratorTask, model: Gpt) -> float:
    """Return the time in seconds from a task to one answer that compiles."""
    began = perf_counter()
    ((name, subject),) = subjects_of(task).items()
    request = Schedules(task, name, subject, known=model.known)
    prompt = request.prompt(profile=model.profile)
    draw(model, LANGUAGE, prompt, request.grammar, 1, np.random.default_rng(task.seed))
    return perf_counter() - began


def _seconds_of_candidate(task: GeneratorTask, model: Gpt) -> float:
    """Return the time in seconds from a task to the first candidate that a search would measure."""
    began = perf_counter()
    next(LmGenerator(model).propose(task), None)
    return perf_counter() - began


def render(rows: Sequence[dict[str, Any]], file: Path) -> str:
    """Write the results as FILE.json and FILE.md; return the Markdown text."""
    whole: dict[str, Any] = {"layers": len(rows), "cores": sorted({row["cores"] for row in rows})}
    lines = [f"{len(rows)} layers", "", "| | times | median | p95 |", "| --- | --: | --: | --: |"]
    for name, (unit, size) in TIMED.items() if rows else ():
        every = [each for row in rows for each in row[name]]
        middle, high = median(every), float(np.quantile(every, 0.95))
        whole[name] = {"times": len(every), "median_s": middle, "p95_s": high}
        lines.append(f"| {name} | {len(every)} | {middle / size:.3g} {unit} | {high / size:.3g} {unit} |")
    return write_report(file, whole, "\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
