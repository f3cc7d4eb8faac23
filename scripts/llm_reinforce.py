"""Training of the language model by group-relative policy optimization (GRPO) on its measured answers, in rounds.

`python -m scripts.llm_reinforce --rounds 4 --networks 200 --answers 16 --folder build/llm_reinforced` runs four rounds.
Each round prompts the model about further networks of the corpus and measures each answer on the RTL. It then raises
the likelihood of answers that cost less than other answers to the same prompt (group-relative policy gradient), and
measures single answers about held-out layers. All results are stored in the folder. Run the same command again to
continue an interrupted run, or increase `--rounds` to add rounds. Each round writes a model (`1/model.safetensors`),
all values (`curve.json`) and their chart (`curve.svg`).
"""

import argparse
import os
import random
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from compiler.llm.data.collect import Devices
from compiler.llm.data.examples import CORPUS
from compiler.llm.data.held_out import is_validation
from compiler.llm.data.self_training import RolloutGroup, networks_of_round, roll_out
from compiler.llm.data.trajectories import Trajectory, read
from compiler.llm.evaluation import GROUP_SIZE
from compiler.llm.model.numpy_transformer import Gpt
from compiler.llm.model.weights import SHIPPED, load, save
from compiler.llm.training.dataset import PromptOptions, TokenizedExample, tokenize_examples
from compiler.llm.training.grpo import GrpoPolicy, reinforce
from compiler.llm.training.pretrain import group_examples
from compiler.util.files import atomic_output
from hw.errors import InputError, MlaError, WorkError
from scripts.jsonl_log import JsonlLog
from scripts.process_pool import run_parallel
from scripts.training_rounds import begin, corpus_of, evaluate, log, model_of, write_curve

_MINIMUMS = {
    "rounds": 0,
    "networks": 1,
    "answers": 2,
    "passes": 1,
    "beside": 0,
    "layers": 1,
    "samples": GROUP_SIZE,
    "workers": 1,
}


def main() -> int:
    """Sample, measure, train and evaluate in rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--networks", type=int, default=200, help="networks per round")
    parser.add_argument("--answers", type=int, default=16, help="answers per prompt")
    parser.add_argument("--rate", type=float, default=GrpoPolicy.rate, help="learning rate")
    parser.add_argument(
        "--passes", type=int, default=GrpoPolicy.passes, help="number of passes over the answers of a round"
    )
    parser.add_argument(
        "--corpus-networks",
        "--beside",
        dest="beside",  # name in asked.json
        type=int,
        default=300,
        help="number of networks whose best answers are mixed into the training",
    )
    parser.add_argument("--layers", type=int, default=40, help="number of held-out layers for the evaluation")
    parser.add_argument("--samples", type=int, default=64, help="answers per held-out layer")
    parser.add_argument("--llm", type=Path, default=SHIPPED, help="initial model")
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument("--folder", type=Path, default=Path("build/llm_reinforced"))
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    try:
        _run_rounds(args)
    except MlaError as error:
        print(f"llm_reinforce: {error}", file=sys.stderr)
        return error.exit_status
    return 0


def _run_rounds(args: argparse.Namespace) -> None:
    for option, minimum in _MINIMUMS.items():
        if getattr(args, option) < minimum:
            raise InputError(f"--{option} must be at least {minimum}, not {getattr(args, option)}")
    if not 0 < args.rate < 1:
        raise InputError(f"--rate must be between 0 and 1, not {args.rate}")
    options = ("networks", "answers", "passes", "beside", "seed")
    begin(args.folder, {option: getattr(args, option) for option in options}, args.llm, args.corpus)
    trajectories = read(corpus_of(args.folder))
    points = [evaluate(args.folder, 0, args.layers, args.samples, args.workers)]
    log(write_curve(args.folder, points))
    for number in range(1, args.rounds + 1):
        groups = _roll_out(args, number, trajectories)
        if not groups:
            raise WorkError(f"round {number}: no prompt is possible about any of its networks")
        _train(args, number, trajectories, groups)
        costs = [fmean(group.costs) for group in groups]
        points.append(
            evaluate(args.folder, number, args.layers, args.samples, args.workers)
            | {
                "questions": len(groups),
                "answers": sum(len(group.costs) for group in groups),
                "cost": fmean(costs),
                "differ": sum(max(each.costs) > min(each.costs) for each in groups),
            }
        )
        log(write_curve(args.folder, points))


def _roll_out(args: argparse.Namespace, number: int, trajectories: list[Trajectory]) -> list[RolloutGroup]:
    """Return the answers of a round in the order of its networks; existing answers are not measured again."""
    selected, file = (
        networks_of_round(trajectories, number, args.networks, args.seed),
        args.folder / str(number) / "groups.jsonl",
    )
    done = _groups(file).keys()
    left = [trajectory for trajectory in selected if (trajectory.machine, trajectory.index) not in done]
    if left:
        log(f"round {number}: {len(left)} networks left to prompt about")
        shares = [left[worker :: args.workers] for worker in range(args.workers)]
        run_parallel(_worker, shares, args.workers, args, number)
    rows = _groups(file)
    if missing := [
        trajectory for trajectory in selected if (trajectory.machine, trajectory.index) not in rows
    ]:
        raise WorkError(
            f"round {number}: {len(missing)} networks were not measured; run the same command again to continue"
        )
    found = [rows[trajectory.machine, trajectory.index] for trajectory in selected]
    return [RolloutGroup.from_json(each) for each in found if each is not None]


def _groups(file: Path) -> dict[tuple[str, int], Any]:
    """Read the groups of a file by network; raise InputError if the file is damaged."""
    try:
        return {(row["key"][0], row["key"][1]): row["group"] for row in JsonlLog(file).read()}
    except (TypeError, LookupError) as error:
        raise InputError(f"{file}: not a file of answers with costs: {error}") from None


def _worker(trajectories: list[Trajectory], args: argparse.Namespace, number: int) -> None:
    """Sample answers about networks until all are done or the parent process has died."""
    file, devices = JsonlLog(args.folder / str(number) / "groups.jsonl"), Devices()
    model, parent = load(model_of(args.folder, number - 1))[0], os.getppid()
    try:
        for trajectory in trajectories:
            rng = random.Random(f"{args.seed} {number} {trajectory.machine} {trajectory.index}")
            group = roll_out(devices, trajectory, model, args.answers, rng)
            file.add(
                {
                    "key": [trajectory.machine, trajectory.index],
                    "group": None if group is None else group.as_json(),
                }
            )
            if os.getppid() != parent:
                return
    finally:
        devices.close()


def _train(
    args: argparse.Namespace, number: int, trajectories: list[Trajectory], groups: list[RolloutGroup]
) -> None:
    """Train the model of a round if it does not exist yet."""
    path = model_of(args.folder, number)
    if path.exists():
        return
    before, about = load(model_of(args.folder, number - 1))
    policy = GrpoPolicy(rate=args.rate, passes=args.passes, seed=args.seed + number)
    corpus = _corpus_examples(_corpus_sample(trajectories, args), before) if args.beside else []
    model = reinforce(before, groups, corpus, policy, lambda text: log(f"round {number}: {text}"))
    about = about | {"reinforced": {"rounds": number, "questions": len(groups), "policy": asdict(policy)}}
    with atomic_output(path) as made:
        save(model, made, about)


def _corpus_sample(trajectories: list[Trajectory], args: argparse.Namespace) -> list[Trajectory]:
    """Return the networks whose corpus examples are mixed into the training."""
    usable = [trajectory for trajectory in trajectories if not is_validation(trajectory)]
    return random.Random(args.seed).sample(usable, min(args.beside, len(usable)))


def _corpus_examples(trajectories: list[Trajectory], model: Gpt) -> list[list[TokenizedExample]]:
    """Return the examples of the best answers, grouped by network and type."""
    style = PromptOptions(model.profile, want=True, max_tokens=model.shape.context, known=model.known)
    return group_examples(tokenize_examples(trajectories, style, log), best=True)


if __name__ == "__main__":
    sys.exit(main())
