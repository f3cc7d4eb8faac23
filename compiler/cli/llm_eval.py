"""`mla llm eval`: compares the language model with other search methods on held-out layers."""

import argparse
from dataclasses import asdict
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING, Any

from compiler.util.files import report
from compiler.util.tables import Column, format_table
from compiler.util.tables import figures as figure_columns
from hw.errors import InputError

if TYPE_CHECKING:
    from compiler.llm.evaluation import Raced, Sampled

#: Default of `--machine`, and the name of this configuration in the corpus and in reports.
DEFAULT_MACHINE, _CORPUS_NAME = "default", "usual"


def run(args: argparse.Namespace) -> int:
    """Run all searches, compare them and print the report."""
    from compiler.cli.llm_sample import model_of
    from compiler.cli.search import method_name
    from compiler.llm.data.held_out import HELD_OUT, MACHINES
    from compiler.llm.evaluation import GROUP_SIZE, figures, held_out_points, race, sampled
    from compiler.tuning.measure.measurer import Measurer
    from compiler.tuning.registry import LLM, METHODS
    from compiler.util.progress import log, progress

    baselines = [method_name(name) for name in args.methods.split(",") if name]
    for name in baselines:
        if name not in METHODS:
            raise InputError(f"--methods must be among {', '.join(METHODS)}, not {name!r}")
    machine_name = _CORPUS_NAME if args.machine == DEFAULT_MACHINE else args.machine
    if machine_name not in MACHINES:
        names = ", ".join(repr(DEFAULT_MACHINE if each == _CORPUS_NAME else each) for each in MACHINES)
        raise InputError(f"--machine must be one of {names}, not {args.machine!r}")
    if 0 < args.samples < GROUP_SIZE:
        raise InputError(f"--samples must be 0 or at least {GROUP_SIZE}, not {args.samples}")
    model, machine = model_of(args), MACHINES[machine_name]
    trials: dict[str, int] = {LLM: args.trials}
    for name in baselines:
        trials[name] = args.baseline_trials
    points = held_out_points(
        machine.conditions.config.n, args.seed, machine, shapes=machine_name not in HELD_OUT
    )
    raced: list[Raced] = []
    answers: list[Sampled] = []
    with progress("comparing methods", args.layers, "layers") as task:
        for point in islice(points, args.layers):
            with Measurer(point.graph(), machine.conditions, machine.options, 1, args.seed) as measurer:
                raced.append(race(measurer, point, model, trials, args.seeds, args.temperature, log))
                if args.samples:
                    answers.append(
                        sampled(measurer, point.family, model, args.samples, args.seed, args.temperature)
                    )
            task.advance()
    whole = {
        "machine": machine_name,
        "seeds": args.seeds,
        "trials": trials,
        "layers": [_row(each) for each in raced],
    }
    whole |= {"ratios": _ratios(raced, trials), "kinds": _kinds(raced)}
    if answers:
        whole |= {"samples": [each.cycles for each in answers], "sampled": figures(answers)}
    report(whole, _table(whole), args.json)
    return 0


def _row(raced: "Raced") -> dict[str, Any]:
    return {
        "layer": raced.layer,
        "point": raced.point.as_json(),
        "static_cycles": raced.static,
        "floor_cycles": raced.floor,
        "first": raced.first,
        "curves": raced.curves,
    }


def _kinds(raced: "list[Raced]") -> dict[str, dict[str, int]]:
    """Return statistics of the model's candidates by kind of candidate, summed over all layers."""
    from compiler.llm.generate.candidate_pool import BanditTally

    found: dict[str, BanditTally] = {}
    for each in raced:
        for kind, tally in each.kinds.items():
            found.setdefault(kind.value, BanditTally()).add(tally)
    return {kind: asdict(tally) for kind, tally in found.items()}


def _ratios(raced: "list[Raced]", trials: dict[str, int]) -> list[dict[str, Any]]:
    """Return mean ratios of the model's cycles, after one trial and after all, to each baseline's final cycles."""
    from compiler.llm.evaluation import mean_ratio
    from compiler.tuning.registry import LLM

    return [
        {
            "trials": count,
            "method": method,
            "method_trials": most,
            "ratio": mean_ratio(raced, (LLM, count), (method, most)),
        }
        for count in dict.fromkeys((1, trials[LLM]))
        for method, most in trials.items()
        if method != LLM
    ]


def _table(whole: dict[str, Any]) -> str:
    trials = whole["trials"]
    titles = [f"{name} ({count})" for name, count in trials.items()]
    rows = [
        [
            each["layer"],
            f"{each['static_cycles']:,}",
            f"{each['floor_cycles']:,}",
            *(f"{median(curve[-1] for curve in each['curves'][name]):,.0f}" for name in trials),
        ]
        for each in whole["layers"]
    ]
    lines = [format_table([Column("layer"), *figure_columns("static", "floor", *titles)], rows)]
    lines += [
        f"llm after {each['trials']}: {each['ratio']:.4f} times {each['method']} after {each['method_trials']}"
        for each in whole["ratios"]
    ]
    lines += [
        f"{kind}: {each['valid']} of {each['made'] - each['known']} valid, {each['better']} improved, "
        f"{each['known']} duplicates"
        for kind, each in whole["kinds"].items()
    ]
    if found := whole.get("sampled"):
        lines += [
            f"{which}: {found[key]:.4f} times the static compiler's cycles (median {found[key + '_median']:.4f})"
            for which, key in (("one answer", "one"), ("the best of four", "some"))
        ]
    return "\n".join(lines)
