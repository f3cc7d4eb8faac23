"""Self-training of the language model: rounds of sampling, measuring and fine-tuning.

`python -m scripts.llm_iterate --rounds 3 --networks 400 --answers 8 --steps 400 --folder build/llm_rounds` runs three
rounds. Each round prompts the model about further networks of the corpus, measures its answers on the RTL, trains the
model with them, and measures single answers about held-out layers. All results are stored in the folder. Run the same
command again to continue an interrupted run, or increase `--rounds` to add rounds. Each round writes a model
(`1/model.safetensors`), all values (`curve.json`) and their chart (`curve.svg`). `--pack` writes a corpus with all
answers.
"""

import argparse
import multiprocessing
import os
import random
import sys
from pathlib import Path

from compiler.llm.data.collect import Devices
from compiler.llm.data.examples import CORPUS
from compiler.llm.data.self_training import SamplingOptions, extend, networks_of_round
from compiler.llm.data.trajectories import CorpusJournal, Trajectory, pack, read
from compiler.llm.evaluation import GROUP_SIZE
from compiler.llm.model.weights import SHIPPED, load, save
from compiler.llm.training.pretrain import fine_tune, fine_tuning_plan
from compiler.util.files import atomic_output
from hw.errors import InputError, MlaError, WorkError
from scripts.training_rounds import begin, corpus_of, evaluate, log, model_of, write_curve

Key = tuple[str, int]
#: Networks between progress messages.
_REPORT_NETWORKS = 10


def main() -> int:
    """Sample, measure, train and evaluate in rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--networks", type=int, default=400, help="networks per round")
    parser.add_argument(
        "--answers", type=int, default=8, help="number of most promising answers per prompt to measure"
    )
    parser.add_argument("--temperature", type=float, default=1.0, help="sampling temperature")
    parser.add_argument(
        "--drawn",
        type=int,
        default=32,
        help="sampled answers per prompt",
    )
    parser.add_argument("--turns", type=int, default=2, help="prompts per network")
    parser.add_argument("--steps", type=int, default=400, help="training steps per round")
    parser.add_argument("--layers", type=int, default=24, help="number of held-out layers for the evaluation")
    parser.add_argument("--samples", type=int, default=16, help="answers per held-out layer")
    parser.add_argument("--llm", type=Path, default=SHIPPED, help="initial model")
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument("--folder", type=Path, default=Path("build/llm_rounds"))
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--pack",
        type=Path,
        nargs="?",
        const=CORPUS,
        help="write the corpus with all answers to this file (default: the corpus file)",
    )
    args = parser.parse_args()
    try:
        _run_rounds(args)
    except MlaError as error:
        print(f"llm_iterate: {error}", file=sys.stderr)
        return error.exit_status
    return 0


def _run_rounds(args: argparse.Namespace) -> None:
    for option, minimum in {
        "rounds": 0,
        "networks": 1,
        "answers": 1,
        "drawn": 0,
        "turns": 1,
        "steps": 0,
        "layers": 1,
        "samples": GROUP_SIZE,
    }.items():
        if getattr(args, option) < minimum:
            raise InputError(f"--{option} must be at least {minimum}, not {getattr(args, option)}")
    options = ("networks", "answers", "temperature", "drawn", "turns", "steps", "layers", "samples", "seed")
    begin(args.folder, {option: getattr(args, option) for option in options}, args.llm, args.corpus)
    trajectories = {
        (trajectory.machine, trajectory.index): trajectory for trajectory in read(corpus_of(args.folder))
    }
    points, sampled = [evaluate(args.folder, 0, args.layers, args.samples, args.workers)], set[Key]()
    log(write_curve(args.folder, points))
    for number in range(1, args.rounds + 1):
        before, model = model_of(args.folder, number - 1), model_of(args.folder, number)
        selected = networks_of_round(list(trajectories.values()), number, args.networks, args.seed)
        known = {(trajectory.machine, trajectory.index): len(trajectory.steps) for trajectory in selected}
        found = _sample_answers(args, number, selected, before)
        trajectories |= found
        sampled |= known.keys()
        if not model.exists():
            tuned = fine_tune(
                load(before)[0],
                list(trajectories.values()),
                sampled,
                fine_tuning_plan(args.steps, args.seed + number),
                args.folder / str(number),
                log,
            )
            with atomic_output(model) as path:
                save(tuned.model, path, tuned.about)
        new = {key: found[key].steps[known[key] :] for key in known}
        costs = {key: [step.cycles for step in found[key].steps[: known[key]]] for key in known}
        points.append(
            evaluate(args.folder, number, args.layers, args.samples, args.workers)
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
    args: argparse.Namespace, number: int, selected: list[Trajectory], model: Path
) -> dict[Key, Trajectory]:
    """Return the networks of a round with the model's answers; networks in a journal are not measured again."""
    folder, wanted = (
        args.folder / str(number),
        {(trajectory.machine, trajectory.index) for trajectory in selected},
    )
    found = _journals(folder, wanted)
    left = [trajectory for trajectory in selected if (trajectory.machine, trajectory.index) not in found]
    if left:
        log(f"round {number}: {len(left)} networks left to prompt about")
        spawn = multiprocessing.get_context("spawn")
        workers = [
            spawn.Process(target=_worker, args=(args, number, worker, left[worker :: args.workers], model))
            for worker in range(args.workers)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        found = _journals(folder, wanted)
    if missing := wanted - found.keys():
        raise WorkError(
            f"round {number}: {len(missing)} networks were not measured; run the same command again to continue"
        )
    return found


def _journals(folder: Path, wanted: set[Key]) -> dict[Key, Trajectory]:
    """Return the contents of all journals; the last line of a journal may be incomplete."""
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
    args: argparse.Namespace, number: int, worker: int, trajectories: list[Trajectory], model: Path
) -> None:
    """Sample answers about networks until all are done or the parent process has died."""
    journal, devices = CorpusJournal(args.folder / str(number) / f"{worker}.jsonl"), Devices()
    parent = os.getppid()
    options = SamplingOptions(load(model)[0], args.answers, args.temperature, args.drawn, args.turns)
    try:
        for count, trajectory in enumerate(trajectories, 1):
            rng = random.Random(f"{args.seed} {number} {trajectory.machine} {trajectory.index}")
            journal.add(extend(devices, trajectory, options, rng))
            if os.getppid() != parent:
                return
            if count % _REPORT_NETWORKS == 0:
                log(f"round {number}, worker {worker}: {count} of {len(trajectories)} networks")
    finally:
        devices.close()


if __name__ == "__main__":
    sys.exit(main())
