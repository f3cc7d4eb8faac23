"""Measurement of the validity of the language model's answers: the number of checks that each answer passes.

`python -m scripts.llm_validity --layers 40 --answers 8 --file build/llm_validity.jsonl` samples answers about held-out
layers in three modes: fully constrained, constrained by the grammar alone, and unconstrained. Layers whose programs are
too long for an answer are excluded from the measurement of whole programs. Run the same command again to continue an
interrupted run; `--only-render` only writes the table of existing results to a .json and a .md file next to the results
file.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from compiler.cache.digest import name as digest
from compiler.llm.data.held_out import HELD_OUT, MACHINES, keys_of
from compiler.llm.evaluation import held_out_points
from compiler.llm.generate.program_request import ProgramRequest
from compiler.llm.generate.requests import Edits, LmRequest, Schedules, fields_of
from compiler.llm.generate.sampler import SampledAnswer, TokenGrammar, draw
from compiler.llm.model.numpy_transformer import Gpt
from compiler.llm.model.weights import SHIPPED, load
from compiler.llm.tokens.assembly_tokens import STOP
from compiler.llm.tokens.layer_prompt import Ask, Programs, subjects_of
from compiler.llm.tokens.schedule_delta import END, ScheduleDeltaGrammar
from compiler.llm.tokens.vocabulary import LANGUAGE
from compiler.profile.measurement import Measurement, Rejected, Result
from compiler.schedule.schedule import Schedule
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork
from compiler.tuning.generators.generator import GeneratorTask
from compiler.tuning.measure.measurer import Measurer
from hw.errors import InputError
from scripts.jsonl_log import JsonlLog
from scripts.process_pool import run_parallel
from scripts.reports import write_report

#: Decoding modes: only new answers that compile, as in a search; all answers of the grammar; any tokens.
MODES = ("fitting", "grammar", "free")
#: Consecutive checks of an answer; the last one passes if it is faster than the static compiler's schedule.
STAGES = ("complete", "compiled", "proved", "ran", "exact", "faster")
#: Number of passed checks of an answer that was rejected in a measurement stage.
_REJECTED = {"compile": 1, "validate": 2, "trap": 3, "time": 3, "same": 4}


class Unconstrained:
    """Grammar that allows every token until the end token.

    Parameters
    ----------
    last : str
        Token that ends an answer.
    """

    def __init__(self, last: str):
        self.last = last

    def after(self, tokens: Sequence[str]) -> Sequence[str]:
        """Return all tokens, or no token after the end token."""
        return () if tokens and tokens[-1] == self.last else LANGUAGE.tokens

    def ends(self, tokens: Sequence[str]) -> bool:
        """Return True, because every answer is accepted."""
        return True


class AnyScheduleDelta(ScheduleDeltaGrammar):
    """Grammar of schedule deltas that accepts every complete answer."""

    def ends(self, tokens: Sequence[str]) -> bool:
        """Return True, because every answer is accepted."""
        return True


def schedules(task: GeneratorTask) -> LmRequest:
    """Return the request for changes to the layer's schedule."""
    ((name, subject),) = subjects_of(task).items()
    return Schedules(task, name, subject)


def edits(task: GeneratorTask) -> LmRequest:
    """Return the request for edits to the slowest program."""
    programs = Programs(task)
    return Edits(programs, programs.programs[0])


def programs(task: GeneratorTask) -> LmRequest:
    """Return the request for a replacement of the slowest program."""
    programs = Programs(task)
    return ProgramRequest(programs, programs.programs[0])


#: Requests by type of answer.
KINDS: dict[str, Callable[[GeneratorTask], LmRequest]] = {
    "schedules": schedules,
    "edits": edits,
    "programs": programs,
}


def answers_of(request: LmRequest, model: Gpt, mode: str, count: int, seed: int) -> list[Schedule | None]:
    """Sample answers and return their schedules (None for an invalid answer); empty if the request allows no answer."""
    if request.grammar is None:
        return []
    grammar = _grammar(request, mode)
    rng, out = np.random.default_rng(seed), list[SampledAnswer]()
    while len(out) < count:
        count_now = min(request.answers_per_draw, count - len(out))
        out += draw(model, LANGUAGE, request.prompt(profile=model.profile), grammar, count_now, rng)
    return [_schedule(request, each) for each in out]


def _grammar(request: LmRequest, mode: str) -> TokenGrammar | None:
    if mode == "grammar" and isinstance(request, Schedules):
        return AnyScheduleDelta(fields_of(request.subject.layer))
    return Unconstrained(STOP if request.ask is Ask.PROGRAM else END) if mode == "free" else request.grammar


def _schedule(request: LmRequest, answer: SampledAnswer) -> Schedule | None:
    """Return the schedule of an answer; None if the answer is incomplete or invalid."""
    try:
        return request.candidate(answer.tokens).schedule if answer.complete else None
    except (InputError, ValueError):
        return None


@dataclass(frozen=True)
class ValidityJob:
    """Evaluation of answers about one layer.

    Parameters
    ----------
    key : str
        Key of the results.
    point : CalibrationNetwork
        Network that consists of the layer.
    machine, kind : str
        Hardware configuration and type of answers: keys of MACHINES and KINDS.
    answers : int
        Number of answers per mode.
    model : path
        Path of the model file.
    """

    key: str
    point: CalibrationNetwork
    machine: str
    kind: str
    answers: int
    model: Path


def main() -> int:
    """Evaluate all layers and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=40, help="held-out layers")
    parser.add_argument("--answers", type=int, default=8, help="number of answers per layer and mode")
    parser.add_argument(
        "--kinds", nargs="*", choices=list(KINDS), default=list(KINDS), help="types of answers"
    )
    parser.add_argument("--machine", choices=list(MACHINES), default="usual")
    parser.add_argument("--llm", type=Path, default=SHIPPED, help="model file")
    parser.add_argument("--seed", type=int, default=0, help="random seed for the layers and answers")
    parser.add_argument("--file", type=Path, default=Path("build/llm_validity.jsonl"))
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only-render", action="store_true", help="only write the table of existing results")
    args = parser.parse_args()
    try:
        jobs = jobs_of(args)
    except InputError as error:
        parser.error(str(error))
    done = {row["key"] for row in JsonlLog(args.file).read()}
    unfinished = [job for job in jobs if job.key not in done]
    print(f"{len(jobs)} jobs, {len(jobs) - len(unfinished)} of them done", flush=True)
    status = (
        0 if args.only_render else run_parallel(evaluate_job, unfinished, args.workers, args.seed, args.file)
    )
    keys = {job.key for job in jobs}
    print(render([row for row in JsonlLog(args.file).read() if row["key"] in keys], args.file))
    return status


def jobs_of(args: argparse.Namespace) -> list[ValidityJob]:
    """Return one job for each layer and each type of answer."""
    machine = MACHINES[args.machine]
    load(args.llm)
    model = digest(args.llm.read_bytes())[:12]
    shapes = args.machine not in HELD_OUT
    points = held_out_points(machine.conditions.config.n, args.seed, machine, shapes=shapes)
    return [
        ValidityJob(
            f"{args.machine} {args.seed}.{number} {kind} {args.answers} {model}",
            point,
            args.machine,
            kind,
            args.answers,
            args.llm,
        )
        for number, point in enumerate(islice(points, args.layers))
        for kind in args.kinds
    ]


@cache
def _model(path: Path) -> Gpt:
    return load(path)[0]


def evaluate_job(job: ValidityJob, seed: int, file: Path) -> None:
    """Sample answers about a layer in each mode, evaluate them and append the results to the file."""
    machine, began = MACHINES[job.machine], monotonic()
    row: dict[str, Any] = {"key": job.key, "kind": job.kind, "layer": keys_of(job.point)[0], "answers": 0}
    with Measurer(job.point.graph(), machine.conditions, machine.options) as measurer:
        baseline, schedule = measurer.baseline(), measurer.first.schedule
        task = GeneratorTask(
            measurer.prepared, machine.conditions, schedule, tuple(schedule.layers), baseline, seed=seed
        )
        known: dict[str, Result] = {}
        for mode in MODES:
            request = KINDS[job.kind](task)
            answers = answers_of(request, _model(job.model), mode, job.answers, seed)
            stages = [stage_of(each, measurer, known, baseline.cycles) for each in answers]
            row[mode] = [sum(stage > at for stage in stages) for at in range(len(STAGES))]
            row["answers"] = len(answers)
    row |= {"reasons": sorted(set(filter(None, map(_reason, known.values()))))}
    JsonlLog(file).add(row)
    counts = "; ".join(f"{mode} {row[mode][4]} of {row['answers']} exact" for mode in MODES)
    print(f"{row['layer']}: {counts}, {monotonic() - began:.0f} s", flush=True)


def stage_of(answer: Schedule | None, measurer: Measurer, known: dict[str, Result], static: int) -> int:
    """Return the number of checks of STAGES that an answer passes."""
    if answer is None:
        return 0
    text = answer.to_json()
    if text not in known:
        (known[text],) = measurer.measure([answer])
    result = known[text]
    if isinstance(result, Rejected):
        return _REJECTED[result.stage]
    if not result.valid:
        return STAGES.index("exact")
    return len(STAGES) - (result.cycles >= static)


def _reason(result: Result) -> str | None:
    if isinstance(result, Measurement):
        return None if result.valid else "wrong outputs"
    return f"{result.stage}: {result.reason}"


def render(rows: Sequence[dict[str, Any]], file: Path) -> str:
    """Write the results as FILE.json and FILE.md; return the Markdown text."""
    whole = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        answered = [row for row in rows if row["kind"] == kind and row["answers"]]
        for mode in MODES:
            counts = [sum(row[mode][at] for row in answered) for at in range(len(STAGES))]
            whole.append(
                {
                    "kind": kind,
                    "way": mode,
                    "layers": len(answered),
                    "answers": sum(row["answers"] for row in answered),
                }
                | dict(zip(STAGES, counts, strict=True))
            )
    lines = [
        f"| kind | mode | layers | answers | {' | '.join(STAGES)} |",
        f"| --- | --- |{' --: |' * (2 + len(STAGES))}",
    ]
    for each in whole:
        cells = " | ".join(
            f"{each[stage]:,} ({100 * each[stage] / max(each['answers'], 1):.1f}%)" for stage in STAGES
        )
        lines.append(f"| {each['kind']} | {each['way']} | {each['layers']} | {each['answers']:,} | {cells} |")
    return write_report(file, whole, "\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
