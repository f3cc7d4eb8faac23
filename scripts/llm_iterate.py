"""Self-training of the language model on its own measured answers, in rounds.

`python -m scripts.llm_iterate --rounds 3 --networks 400 --answers 8 --steps 400 --folder build/llm_rounds`: in each
round the model is prompted about other networks of the corpus, its answers are measured on the RTL, it is trained with
them, and single answers about held-out layers are measured. All results are in the folder, and the same call resumes
after an interruption or adds rounds. Each round writes a model (`1/model.safetensors`), all values (`curve.json`) and
their chart (`curve.svg`). `--pack` writes a corpus with all answers.
"""

import argparse
import multiprocessing
import os
import random
import sys
from pathlib import Path

from compiler.llm.data.examples import CORPUS
from compiler.llm.data.journal import CorpusJournal, pack, read
from compiler.llm.data.measure_harness import Devices
from compiler.llm.data.self_training import SamplingOptions, extend, networks_of_round
from compiler.llm.data.trajectories import Trajectory
from compiler.llm.evaluate.sample_quality import GROUP_SIZE
from compiler.llm.generate.lm_generator import SHIPPED
from compiler.llm.model.weights import load, save
from compiler.llm.training.pretrain import fine_tune, fine_tuning_plan
from compiler.util.files import atomic_output
from hw.errors import InputError, MlaError, WorkError
from scripts.training_rounds import begin, corpus_of, evaluate, log, model_of, write_curve

Key = tuple[str, int]
_REPORT_NETWORKS = 10


def main() -> int:
    """Sample, measure, train and evaluate in rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--networks", type=int, default=400, help="asked about in a round")
    parser.add_argument("--answers", type=int, default=8, help="about each")
    parser.add_argument("--temperature", type=float, default=1.0, help="of those answers")
    parser.add_argument("--drawn", type=int, default=32, help="answers that those are the most promising of")
    parser.add_argument("--turns", type=int, default=2, help="questions about each network")
    parser.add_argument("--steps", type=int, default=400, help="of training in a round")
    parser.add_argument("--layers", type=int, default=24, help="unseen ones that it is judged by")
    parser.add_argument("--samples", type=int, default=16, help="answers about each of those")
    parser.add_argument("--llm", type=Path, default=SHIPPED, help="the model to begin with")
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument("--folder", type=Path, default=Path("build/llm_rounds"))
    parser.add_argument("--lanes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--pack",
        type=Path,
        nargs="?",
        const=CORPUS,
        help="write all that was measured (default: as the corpus)",
    )
    args = parser.parse_args()
    try:
        _run_rounds(args)
    except MlaError as error:
        print(f"llm_iterate: {error}", file=sys.stderr)
        return error.exit_status
    return 0


def _run_rounds(args: argparse.Namespace) -> None:
    for option, least in {
        "rounds": 0,
        "networks": 1,
        "answers": 1,
        "drawn": 0,
        "turns": 1,
        "steps": 0,
        "layers": 1,
        "samples": GROUP_SIZE,
    }.items():
        if getattr(args, option) < least:
            raise InputError(f"--{option} must be at least {least}, not {getattr(args, option)}")
    options = ("networks", "answers", "temperature", "drawn", "turns", "steps", "layers", "samples", "seed")
    begin(args.folder, {option: getattr(args, option) for option in options}, args.llm, args.corpus)
    trajectories = {
        (trajectory.machine, trajectory.index): trajectory for trajectory in read(corpus_of(args.folder))
    }
    points, asked = [evaluate(args.folder, 0, args.layers, args.samples, args.lanes)], set[Key]()
    log(write_curve(args.folder, points))
    for number in range(1, args.rounds + 1):
        before, model = model_of(args.folder, number - 1), model_of(args.folder, number)
        mine = networks_of_round(list(trajectories.values()), number, args.networks, args.seed)
        known = {(trajectory.machine, trajectory.index): len(trajectory.steps) for trajectory in mine}
        found = _sample_answers(args, number, mine, before)
        trajectories |= found
        asked |= known.keys()
        if not model.exists():
            better = fine_tune(
                load(before)[0],
                list(trajectories.values()),
                asked,
                fine_tuning_plan(args.steps, args.seed + number),
                args.folder / str(number),
                log,
            )
            with atomic_output(model) as path:
                save(better.model, path, better.about)
        new = {key: found[key].steps[known[key] :] for key in known}
        costs = {key: [step.cycles for step in found[key].steps[: known[key]]] for key in known}
        points.append(
            evaluate(args.folder, number, args.layers, args.samples, args.lanes)
            | {
                "networks": len(known),
                "answers": sum(map(len, new.values())),
                "better": sum(any(step.cycles < min(costs[key]) for step in new[key]) for key in known),
            }
        )
        log(write_curve(args.folder, points))
    if args.pack is not None:
        pack(trajectories.values(), args.pack)


def _sample_answers(
    args: argparse.Namespace, number: int, mine: list[Trajectory], model: Path
) -> dict[Key, Trajectory]:
    """Return the networks of a round with the model's answers; those in a journal are not measured again."""
    folder, wanted = (
        args.folder / str(number),
        {(trajectory.machine, trajectory.index) for trajectory in mine},
    )
    found = _journals(folder, wanted)
    left = [trajectory for trajectory in mine if (trajectory.machine, trajectory.index) not in found]
    if left:
        log(f"round {number}: {len(left)} networks to be asked about")
        spawn = multiprocessing.get_context("spawn")
        lanes = [
            spawn.Process(target=_worker, args=(args, number, lane, left[lane :: args.lanes], model))
            for lane in range(args.lanes)
        ]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
        found = _journals(folder, wanted)
    if missing := wanted - found.keys():
        raise WorkError(f"round {number}: {len(missing)} networks were not measured; the same call goes on")
    return found


def _journals(folder: Path, wanted: set[Key]) -> dict[Key, Trajectory]:
    """Return the contents of all journals; the last line of each may be incomplete."""
    found: dict[Key, Trajectory] = {}
    for path in sorted(folder.glob("*.jsonl")):
        CorpusJournal(path)
        found |= {
            key: trajectory
            for trajectory in read(path)
            if (key := (trajectory.machine, trajectory.index)) in wanted
        }
    return found


def _worker(
    args: argparse.Namespace, number: int, lane: int, trajectories: list[Trajectory], model: Path
) -> None:
    """Sample answers about networks until all are done or the parent process has died."""
    journal, devices = CorpusJournal(args.folder / str(number) / f"{lane}.jsonl"), Devices()
    parent = os.getppid()
    asking = SamplingOptions(load(model)[0], args.answers, args.temperature, args.drawn, args.turns)
    try:
        for count, trajectory in enumerate(trajectories, 1):
            rng = random.Random(f"{args.seed} {number} {trajectory.machine} {trajectory.index}")
            journal.add(extend(devices, trajectory, asking, rng))
            if os.getppid() != parent:
                return
            if count % _REPORT_NETWORKS == 0:
                log(f"round {number}, lane {lane}: {count} of {len(trajectories)} networks")
    finally:
        devices.close()


if __name__ == "__main__":
    sys.exit(main())
