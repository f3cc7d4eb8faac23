"""`mla llm train`: trains the language model on measurements."""

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from compiler.util.files import atomic_output, report
from hw.errors import InputError

if TYPE_CHECKING:
    from compiler.llm.training.pretrain import TrainedModel


def run(args: argparse.Namespace) -> int:
    """Train the model, write it and print the report."""
    from compiler.llm.data.examples import CORPUS
    from compiler.llm.data.journal import read
    from compiler.llm.model.weights import load_extended, save
    from compiler.util.progress import log

    try:
        from compiler.llm.training.pretrain import default_plan, train
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "torch":
            raise
        raise InputError("training needs PyTorch: make setup EXTRAS=torch") from None
    trajectories = [trajectory for file in args.corpus or [CORPUS] for trajectory in read(file)]
    start = None if args.start is None else load_extended(args.start, args.seed)
    plan = replace(
        default_plan(args.steps, args.finetune_steps, args.seed, start and start.shape),
        profile=not args.without_profile,
        want=not args.no_target_token,
    )
    found = train(trajectories, plan, args.checkpoints, log, start)
    with atomic_output(args.out) as path:
        save(found.model, path, found.about)
    whole = {"model": str(args.out), "bytes": args.out.stat().st_size} | found.about
    report(whole, _table(whole, found), args.json)
    return 0


def _table(whole: dict[str, Any], found: "TrainedModel") -> str:
    lines = [
        f"{whole['networks']:,} networks, {whole['examples']:,} examples",
        *(
            f"{name}: loss {curve[-1][1]:.3f} after {curve[-1][0]:,} steps (per held-out answer token)"
            for name, curve in found.about["loss"].items()
        ),
        f"{whole['model']}: {whole['bytes']:,} bytes",
    ]
    return "\n".join(lines)
