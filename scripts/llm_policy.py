"""Measured answers of the language model with and without the policy that a database contains.

`python -m scripts.llm_policy MODEL --db FILE` samples answers about the layers of a network from whose trials the
current policy was learned (`mla serve --adapt`, `mla tune`), and measures the network with each of them.
"""

import argparse
import sys
from math import exp, log
from pathlib import Path
from statistics import fmean

import numpy as np

from compiler.cache.content_store import ContentStore
from compiler.cache.digest import shape_of
from compiler.cache.model_source import ModelSource
from compiler.llm.generate.policy import parts, shipped_digest, weigher
from compiler.llm.generate.requests import Schedules
from compiler.llm.generate.sampler import draw
from compiler.llm.model.weights import SHIPPED, load
from compiler.llm.tokens.layer_prompt import subjects_of
from compiler.llm.tokens.vocabulary import LANGUAGE
from compiler.options import CompileOptions
from compiler.profile.measurement import HardwareProfile, Measurement
from compiler.tuning.generators.generator import GeneratorTask
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning_db.database import TuningDatabase
from hw.config import load_target
from hw.errors import InputError, MlaError


def main() -> int:
    """Sample and measure the answers, and print the relative cycles of trained and held-out layers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="network from whose trials the policy was learned")
    parser.add_argument("--db", required=True, help="file or URL of the database")
    parser.add_argument("--target", default="n16", help="target to measure on")
    parser.add_argument("--answers", type=int, default=10, help="number of answers about each layer")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    try:
        for line in _measured(args):
            print(line)
    except MlaError as error:
        print(f"llm_policy: {error}", file=sys.stderr)
        return error.exit_status
    return 0


def _measured(args: argparse.Namespace) -> list[str]:
    with TuningDatabase(args.db, secret=ContentStore().secret, read_only=True) as database:
        accepted = [each for each in database.policies(shipped_digest()) if each.accepted]
    if not accepted or accepted[-1].weights is None:
        raise InputError(f"{args.db}: there is no policy of the included language model")
    weights, (model, _), source = accepted[-1].weights, load(SHIPPED), ModelSource(args.model)
    held_out = {each.layer for each in parts(accepted[-1].trials)[1]}
    known = {each.layer for each in accepted[-1].trials}
    found: dict[tuple[bool, bool], list[tuple[float, float]]] = {}
    options = CompileOptions(rounding=source.rounding)
    with Measurer(source.graph, HardwareProfile(load_target(args.target)), options, devices=1) as measurer:
        schedule, baseline = measurer.first.schedule, measurer.baseline()
        layers = tuple(schedule.layers)
        task = GeneratorTask(measurer.prepared, measurer.conditions, schedule, layers, baseline)
        for name, subject in subjects_of(task).items():
            layer = shape_of([subject.layer])
            for used in (False, True) if layer in known else ():
                request = Schedules(task, name, subject)
                weigh = weigher(weights, subject.word) if used else None
                rng = np.random.default_rng(args.seed)
                answers = draw(
                    model, LANGUAGE, request.prompt(), request.grammar, args.answers, rng, weigh=weigh
                )
                schedules = [request.candidate(each.tokens).schedule for each in answers if each.complete]
                costs = [
                    log(each.cycles / baseline.cycles)
                    for each in measurer.measure(schedules)
                    if isinstance(each, Measurement) and each.exact
                ]
                found.setdefault((layer in held_out, used), []).append((fmean(costs), min(costs)))
    return [
        f"{len(each)} {'held-out' if held else 'trained'} layers {'with' if used else 'without'} policy: relative "
        f"cycles {exp(fmean(mean for mean, _ in each)):.4f}, best {exp(fmean(best for _, best in each)):.4f}"
        for (held, used), each in found.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
