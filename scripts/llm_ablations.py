"""Ablations of the language model: training with one part of the prompts or one training stage removed.

`python -m scripts.llm_ablations --steps 900 --then 300 --folder build/llm_ablations` trains a model for each variant in
VARIANTS, with the same initial model and the same number of steps. It then measures single answers of each model about
the same held-out layers. Run the same command again to continue an interrupted run. The results are written to
ablations.json and ablations.md in the folder.
"""

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from compiler.llm.data.examples import CORPUS
from compiler.llm.data.trajectories import read
from compiler.llm.evaluation import GROUP_SIZE
from compiler.llm.model.weights import load_extended, save
from compiler.llm.training.pretrain import Plan, default_plan, train
from compiler.util.files import atomic_output
from hw.errors import MlaError
from scripts.eval_lm import evaluate_model
from scripts.reports import write_report

#: Variants, named by the part that is removed.
VARIANTS = ("nothing", "profile", "want", "fine-tuning")


def main() -> int:
    """Train and evaluate all variants, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--steps", type=int, default=900, help="number of training steps with all measurements"
    )
    parser.add_argument(
        "--then", type=int, default=300, help="number of fine-tuning steps with the best answers"
    )
    parser.add_argument("--from", type=Path, dest="start", help="initial model (default: random weights)")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="measurements to train with")
    parser.add_argument("--layers", type=int, default=24, help="number of held-out layers for the evaluation")
    parser.add_argument("--samples", type=int, default=16, help="answers per held-out layer")
    parser.add_argument("--folder", type=Path, default=Path("build/llm_ablations"), help="models and results")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    try:
        for variant in VARIANTS:
            _train(args, variant)
        rows = [{"without": variant} | _evaluated(args, variant) for variant in VARIANTS]
    except MlaError as error:
        print(f"llm_ablations: {error}", file=sys.stderr)
        return error.exit_status
    print(write_report(args.folder / "ablations", rows, _table(rows)))
    return 0


def plan(variant: str, whole: Plan) -> Plan:
    """Return the training plan of a variant."""
    steps, then = whole.first.steps, whole.then.steps
    match variant:
        case "profile":
            return replace(whole, profile=False)
        case "want":
            return replace(whole, want=False)
        case "fine-tuning":
            first = replace(whole.first, steps=steps + then)
            return replace(whole, first=first, then=replace(whole.then, steps=0))
        case _:
            return whole


def _train(args: argparse.Namespace, variant: str) -> None:
    """Train the model of a variant if it does not exist yet."""
    path = _model(args, variant)
    if path.exists():
        return
    start = None if args.start is None else load_extended(args.start, args.seed)
    whole = default_plan(args.steps, args.then, args.seed, start and start.shape)
    folder = args.folder / variant
    folder.mkdir(parents=True, exist_ok=True)
    found = train(
        list(read(args.corpus)), plan(variant, whole), folder, lambda text: _log(variant, text), start
    )
    with atomic_output(path) as made:
        save(found.model, made, found.about)


def _model(args: argparse.Namespace, variant: str) -> Path:
    return args.folder / variant / "model.safetensors"


def _evaluated(args: argparse.Namespace, variant: str) -> dict[str, Any]:
    _log(variant, "evaluating")
    file = args.folder / variant / "judged.jsonl"
    return evaluate_model(_model(args, variant), args.layers, args.samples, args.workers, file)


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [
        f"| without | one answer | median | best of {GROUP_SIZE} | median |",
        "| --- | --: | --: | --: | --: |",
        *(
            f"| {row['without']} | {row['one']:.4f} | {row['one_median']:.4f} | {row['some']:.4f} | "
            f"{row['some_median']:.4f} |"
            for row in rows
        ),
    ]
    return "\n".join(lines) + "\n"


def _log(variant: str, text: str) -> None:
    print(f"without {variant}: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
