"""Measurement of the gain of program edits over the best of many schedules for held-out layers.

`python -m scripts.study_program_edits --shapes 3 --folder build/study_program_edits` measures `--trials` schedules with
distinct programs for each layer, proposed by several methods. It then measures `--programs` micro-programs derived from
the best schedules. Run the same command again to continue an interrupted run; `--only-render` only writes the tables of
existing results (report.json, report.md). `--among` selects layers by substrings of their names, for example the layers
for which a run with few trials found a gain.
"""

import argparse
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

from compiler.ir.identity import stored
from compiler.llm.data.held_out import is_held_out
from compiler.llm.generate.candidate_pool import CandidateKind
from compiler.llm.generate.lm_generator import LmGenerator
from compiler.options import CompileOptions
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import HardwareProfile, Measurement
from compiler.schedule.schedule import Schedule
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, singles
from compiler.tuning.constraints import Objective
from compiler.tuning.edits.edit import EditError
from compiler.tuning.edits.editable_programs import EditablePrograms
from compiler.tuning.generators.generator import Candidate, Generator, GeneratorTask
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.registry import GENERATORS, LLM
from compiler.tuning.search.generator_search import GeneratorSearch
from compiler.tuning.search.method import SearchMethod, Trial
from compiler.tuning.search.program_edit_search import Edits, ProgramEditSearch
from compiler.tuning.search.tuner import tune
from hw.config import load_target
from hw.errors import InputError
from scripts.jsonl_log import JsonlLog
from scripts.measurement_cache import FileCache
from scripts.process_pool import run_parallel
from scripts.study_program_edits_report import render

KINDS = (
    "conv",
    "dense",
    "depthwise",
    "matmul",
    "add",
    "mul",
    "max_pool",
    "avg_pool",
    "softmax",
    "mean",
    "norm",
    "tanh",
    "transpose",
    "channels_first",
)
#: Methods that search for schedules in turns; number of turns of a method into which all trials are divided; maximum
#: number of turns.
SCHEDULES, _PARTS, _TURNS = ("hpm", "coordinate", "evolution", "random"), 8, 12
#: Minimum and maximum bytes of a layer's input and weights: more than one tile, but fast to simulate.
_BYTES = (4096, 65_536)
#: Fraction of the program trials that is divided among all starts; the best start receives the other trials.
_SHARED = 0.5


@dataclass(frozen=True)
class EditJob:
    """Study of one layer.

    Parameters
    ----------
    point : CalibrationNetwork
        Network that consists of the layer.
    trials, programs, starts : int
        Number of schedules to measure, of programs per method, and of schedules from which the programs are derived.
    methods : tuple of str
        Names of the methods, keys of PROGRAMS.
    seed : int
        Random seed of the methods.
    folder : path
        Folder for measurements and results.
    """

    point: CalibrationNetwork
    trials: int
    programs: int
    starts: int
    methods: tuple[str, ...]
    seed: int
    folder: Path

    @property
    def name(self) -> str:
        """Description of the layer in one line."""
        (op,) = self.point.ops
        shape = "x".join(map(str, self.point.shape))
        size = f" to {op.size}" if op.size else ""
        window = f", {op.window}x{op.window} / {op.stride}" if op.window > 1 else ""
        groups = f", {op.groups} groups" if op.groups > 1 else ""
        return f"{op.kind} {shape}{size}{window}{groups}"

    @property
    def key(self) -> str:
        """Key of the results."""
        methods = " ".join(self.methods)
        return f"{self.name}; {self.trials}, {self.programs} from {self.starts} by {methods}; {self.seed}"


def main() -> int:
    """Study all layers and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--shapes", type=int, default=2, help="number of held-out layers of each kind")
    parser.add_argument(
        "--bytes",
        type=int,
        nargs=2,
        default=_BYTES,
        metavar=("MIN", "MAX"),
        help="minimum and maximum size of a layer's input and weights in bytes (default: %(default)s)",
    )
    parser.add_argument(
        "--among",
        nargs="*",
        metavar="TEXT",
        help="study only layers whose name contains one of these strings",
    )
    parser.add_argument("--trials", type=int, default=1024, help="number of schedules to measure per layer")
    parser.add_argument(
        "--programs", type=int, default=256, help="number of programs to measure per layer and method"
    )
    parser.add_argument(
        "--starts", type=int, default=4, help="number of schedules from which programs are derived"
    )
    parser.add_argument("--methods", default="edits", help=f"comma-separated list of {', '.join(PROGRAMS)}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", type=Path, default=Path("build/study_program_edits"))
    parser.add_argument(
        "--only-render", action="store_true", help="only write the tables of existing results"
    )
    args = parser.parse_args()
    try:
        jobs = jobs_of(args)
    except InputError as error:
        parser.error(str(error))
    done = {row["key"] for row in JsonlLog(rows_file(args.folder)).read()}
    unfinished = [job for job in jobs if job.key not in done]
    print(f"{len(jobs)} layers, {len(jobs) - len(unfinished)} of them done", flush=True)
    status = 0 if args.only_render else run_parallel(run_job, unfinished, args.workers)
    wanted = {job.key: number for number, job in enumerate(jobs)}
    rows = {row["key"]: row for row in JsonlLog(rows_file(args.folder)).read() if row["key"] in wanted}
    print(render(sorted(rows.values(), key=lambda row: wanted[row["key"]]), args.folder))
    return status


def jobs_of(args: argparse.Namespace) -> list[EditJob]:
    """Return the jobs of the requested layers, with layer kinds interleaved."""
    if not 0 < args.bytes[0] < args.bytes[1]:
        raise InputError(f"--bytes: {args.bytes[0]} to {args.bytes[1]} is not a range of sizes")
    for option in ("shapes", "trials", "programs", "starts", "workers"):
        if getattr(args, option) < 1:
            raise InputError(f"--{option} must be at least 1, not {getattr(args, option)}")
    methods = tuple(args.methods.split(","))
    for name in methods:
        if name not in PROGRAMS:
            raise InputError(f"--methods must be among {', '.join(PROGRAMS)}, not {name!r}")
        PROGRAMS[name]()
    found: dict[str, list[CalibrationNetwork]] = {kind: [] for kind in args.kinds}
    for point in held_out_layers(args.seed, *args.bytes):
        selected = found.get(point.family, [])
        if point.family in found and len(selected) < args.shapes:
            selected.append(point)
        if all(len(points) == args.shapes for points in found.values()):
            break
    points = [points[number] for number in range(args.shapes) for points in found.values()]
    more = args.trials, args.programs, args.starts, methods, args.seed, args.folder
    jobs = [EditJob(point, *more) for point in points]
    if args.among is None:
        return jobs
    if unmatched := [text for text in args.among if not any(text in job.name for job in jobs)]:
        names = "; ".join(job.name for job in jobs)
        raise InputError(f"--among: no layer name contains {unmatched[0]!r}; layers are {names}")
    return [job for job in jobs if any(text in job.name for text in args.among)]


def rows_file(folder: Path) -> Path:
    """Return the path of the results file."""
    return folder / "layers.jsonl"


def held_out_layers(
    seed: int, minimum: int = _BYTES[0], maximum: int = _BYTES[1]
) -> Iterator[CalibrationNetwork]:
    """Yield distinct held-out layers in a range of sizes indefinitely."""
    rng, seen = random.Random(f"new territory {seed}"), set()
    for point in singles(load_target("n16").n, rng):
        if point not in seen and is_held_out(point) and minimum <= _bytes(point) <= maximum:
            seen.add(point)
            if _compiles(point):
                yield point


def _bytes(point: CalibrationNetwork) -> int:
    (h, w, c), (op,) = point.shape, point.ops
    return h * w * c + op.window**2 * c * op.size


def _compiles(point: CalibrationNetwork) -> bool:
    try:
        return bool(
            ModelCompiler(point.graph(), load_target("n16"), CompileOptions(rounding="reference"))
            .network()
            .codes
        )
    except InputError:
        return False


def run_job(job: EditJob) -> None:
    """Study one layer and append the results to the file."""
    conditions, began = HardwareProfile(load_target("n16")), monotonic()
    with Measurer(job.point.graph(), conditions, CompileOptions(rounding="reference")) as measurer:
        file = job.folder / "measured" / f"{job.name.replace(' ', '_').replace('/', 'by')}.jsonl"
        cache = measurer.cache = FileCache(measurer.prepared, conditions, file)
        baseline = measurer.baseline()
        schedules, requested = schedules_of(measurer, cache, job.trials, job.seed)
        last_report = monotonic()
        found = _summary(schedules[0]) | {
            "asked": requested,
            "measured": len(schedules),
            "seconds": last_report - began,
        }
        print(
            f"{job.name}: {found['cycles']:,} of {baseline.cycles:,} after {len(schedules)} schedules of {requested}, "
            f"{last_report - began:.0f} s",
            flush=True,
        )
        row: dict[str, Any] = {
            "key": job.key,
            "kind": job.point.family,
            "layer": job.name,
            "point": job.point.as_json(),
            "static": baseline.cycles,
            "floor": baseline.floor,
            "seed": job.seed,
            "schedules": found,
            "programs": {},
        }
        for name in job.methods:
            found = programs_of(measurer, name, schedules[: job.starts], job.programs, job.seed)
            row["programs"][name] = found | {"seconds": monotonic() - last_report}
            last_report = monotonic()
            print(
                f"{job.name}: {name} {found['cycles']:,}, {row['programs'][name]['seconds']:.0f} s",
                flush=True,
            )
    JsonlLog(rows_file(job.folder)).add(row)


def cycles(trial: Trial) -> int:
    """Return the cycles of a successful trial."""
    assert isinstance(trial.result, Measurement)
    return trial.result.cycles


def _summary(trial: Trial) -> dict[str, Any]:
    """Return cycles, cycles by cause and the schedule of a trial as a JSON object."""
    assert isinstance(trial.result, Measurement)
    where: dict[str, int] = {}
    for entry in trial.result.layers:
        for cause, count in entry.where.items():
            where[cause] = where.get(cause, 0) + count
    return {"cycles": trial.result.cycles, "where": where, "schedule": stored(trial.schedule)}


def schedules_of(measurer: Measurer, cache: FileCache, trials: int, seed: int) -> tuple[list[Trial], int]:
    """Search for schedules with distinct programs; return their trials, best first, and the number of measurements.

    The number includes repeated measurements. Fewer than `trials` trials are returned only if one turn of all methods
    finds no new programs; in this case, at least `trials` measurements were requested.
    """
    found: dict[str | None, Trial] = {}
    requested = 0
    for turn in range(_TURNS):
        before = len(found)
        for method in SCHEDULES:
            tuned = tune(
                measurer, method, min(-(-trials // _PARTS), trials - len(found)), seed=seed * _TURNS + turn
            )
            first = Trial(measurer.first.schedule, tuned.baseline, tuned.curve[0][1])
            requested += len(tuned.trials)
            for trial in [first, *tuned.trials]:
                if trial.cost is not None and len(found) < trials:
                    found.setdefault(cache.key(trial.schedule), trial)
        if len(found) in (before, trials) and (len(found) == trials or requested >= trials):
            break
    return sorted(found.values(), key=lambda trial: trial.cost or 0.0), requested


class RecordingGenerator(LmGenerator):
    """Language model generator that records its answers.

    Attributes
    ----------
    recorded : dict
        For each proposed schedule as JSON, the schedule for which it was first proposed, and the answer; None for the
        initial schedules of a search.
    """

    def __init__(self) -> None:
        super().__init__(kinds=[CandidateKind.EDITS])
        self.recorded: dict[str, tuple[str, str] | None] = {}

    def propose(self, task: GeneratorTask) -> Iterator[Candidate]:
        """Yield candidates and record the answers."""
        now = task.schedule.to_json()
        self.recorded.setdefault(now, None)
        for candidate in super().propose(task):
            self.recorded.setdefault(candidate.schedule.to_json(), (now, candidate.description))
            yield candidate

    def answers(self, schedule: Schedule) -> list[str]:
        """Return the answers that led to a schedule, first answer first."""
        text, found = schedule.to_json(), []
        while (step := self.recorded.get(text)) is not None:
            text, why = step
            found.append(why)
        return found[::-1]


#: Sources of programs by name: constructor of a generator of micro-programs, or of None for the search over edits.
PROGRAMS: dict[str, Callable[[], Generator | None]] = {
    "edits": lambda: None,
    "peephole": GENERATORS["peephole"],
    LLM: RecordingGenerator,
}


def _searcher(measurer: Measurer, name: str, start: Trial, baseline: Measurement, seed: int) -> SearchMethod:
    """Return a search for programs that starts from the programs of a schedule."""
    generator = PROGRAMS[name]()
    searcher = (
        ProgramEditSearch(measurer, Objective.LATENCY, baseline, seed, patience=0)
        if generator is None
        else GeneratorSearch(measurer, Objective.LATENCY, baseline, seed, generators=[generator])
    )
    searcher.best = start
    searcher.register(start.schedule)  # already measured
    return searcher


def programs_of(
    measurer: Measurer, name: str, starts: Sequence[Trial], trials: int, seed: int
) -> dict[str, Any]:
    """Return the best program found by one method: cycles, texts, and the edits that result in the program.

    Half of the trials are divided among all starts; the start with the best program receives the other half.
    """
    baseline, results = measurer.baseline(), Counter({"measured": 0, "rejected": 0, "inexact": 0})
    searchers = [_searcher(measurer, name, start, baseline, seed + at) for at, start in enumerate(starts)]
    for searcher in searchers:
        _continue(measurer, searcher, round(trials * _SHARED) // len(searchers), results)
    for searcher in sorted(searchers, key=lambda each: cycles(each.best)):
        _continue(measurer, searcher, trials - results["measured"], results)
    searcher = min(searchers, key=lambda each: cycles(each.best))
    best, edits, said = searcher.best, [], []
    if isinstance(searcher, ProgramEditSearch) and best.schedule.programs:
        best, edits = pruned(measurer, best, searcher.edits[best.schedule.to_json()])
    if isinstance(searcher, GeneratorSearch):
        said = [
            text
            for each in searcher.generators
            if isinstance(each, RecordingGenerator)
            for text in each.answers(best.schedule)
        ]
    origin = {"start": searchers.index(searcher), "starts": [cycles(start) for start in starts]}
    return dict(results) | origin | {"edits": edits, "said": said} | _summary(best)


def _continue(measurer: Measurer, searcher: SearchMethod, count: int, results: Counter[str]) -> None:
    """Measure up to `count` further programs, until the search proposes none."""
    for _ in range(count):
        schedule = searcher.propose()
        if not schedule.programs:
            return
        (result,) = measurer.measure([schedule])
        searcher.record(schedule, result)
        results["measured"] += 1
        results["rejected"] += not isinstance(result, Measurement)
        results["inexact"] += isinstance(result, Measurement) and not result.exact


def pruned(measurer: Measurer, best: Trial, edits: dict[str, Edits]) -> tuple[Trial, list[dict[str, Any]]]:
    """Remove the edits without effect from a program; return the program and the remaining edits with their gains.

    Returns
    -------
    Trial
        Trial of the pruned program.
    list of dict
        Program, edit as text, and additional cycles without the edit (None if other edits depend on it).
    """
    editable = EditablePrograms(measurer.prepared.network(replace(best.schedule, programs={})))
    worth: list[dict[str, Any]] = []
    for name in edits:
        at = len(edits[name]) - 1
        while at >= 0:
            fewer = edits | {name: edits[name][:at] + edits[name][at + 1 :]}
            trial = _without(measurer, editable, fewer)
            if trial is not None and cycles(trial) <= cycles(best):
                edits, best = fewer, trial
            at -= 1
    for name, own in edits.items():
        for at, edit in enumerate(own):
            trial = _without(measurer, editable, edits | {name: own[:at] + own[at + 1 :]})
            more = None if trial is None else cycles(trial) - cycles(best)
            worth.append({"program": name, "edit": str(edit), "worth": more})
    return best, worth


def _without(measurer: Measurer, editable: EditablePrograms, edits: dict[str, Edits]) -> Trial | None:
    """Measure a program with fewer edits; return None if it cannot be built or is rejected."""
    try:
        schedule = editable.with_edits(edits)
    except (EditError, InputError):
        return None
    (result,) = measurer.measure([schedule])
    if not isinstance(result, Measurement) or not result.valid:
        return None
    return Trial(schedule, result, float(result.cycles))


if __name__ == "__main__":
    sys.exit(main())
