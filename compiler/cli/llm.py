"""`mla llm`: trains, samples and evaluates the language model."""

import argparse
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from compiler.cli.compile import REFERENCE, add_compile
from compiler.cli.llm_sample import ANSWER_TYPES
from compiler.cli.options import add_json, add_memory, add_renamed, add_seed, add_target, check_files, integer
from compiler.util.files import atomic_output, report
from compiler.util.tables import Column, format_table
from compiler.util.tables import figures as figure_columns
from hw.errors import InputError

if TYPE_CHECKING:
    from compiler.llm.evaluation import Raced, Sampled
    from compiler.llm.training.pretrain import TrainedModel

SUMMARY = "train, sample or evaluate the language model that writes schedules and micro-programs"
EXAMPLE = "mla llm sample network.tflite --answers 8"
_STEPS, _FINETUNE_STEPS, _KNOWN = 4000, 1000, 2
_SEEDS = 64
#: Default of `--machine`, and the name of this configuration in the corpus and in reports.
DEFAULT_MACHINE, _CORPUS_NAME = "default", "usual"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command-line options of the verb."""
    actions = parser.add_subparsers(dest="action", metavar="train|sample|eval", required=True)
    _add_train(
        actions.add_parser(
            "train",
            help="train a language model on measurements (needs the extra torch)",
            epilog="example: mla llm train --out model.safetensors",
        )
    )
    _add_sample(
        actions.add_parser(
            "sample",
            help="sample answers of the language model for a network",
            epilog="example: mla llm sample network.tflite --answers 8",
        )
    )
    _add_eval(
        actions.add_parser(
            "eval",
            help="compare the language model with other search methods on held-out layers",
            epilog="example: mla llm eval --layers 4",
        )
    )


def _add_train(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--corpus",
        metavar="FILE",
        type=Path,
        action="append",
        help="file of training measurements (repeatable; default: the measurements included in the compiler)",
    )
    parser.add_argument(
        "--steps",
        metavar="N",
        type=integer(1),
        default=_STEPS,
        help="pretraining steps on all measurements (default: %(default)s)",
    )
    parser.add_argument(
        "--pretrain-graphs",
        metavar="N",
        type=integer(0),
        default=0,
        help="steps of next-token training on graphs of public models before the others (default: %(default)s)",
    )
    add_renamed(
        parser,
        "--finetune-steps",
        former_name="--then",
        metavar="N",
        type=integer(0),
        default=_FINETUNE_STEPS,
        help="fine-tuning steps on the best measurements (default: %(default)s)",
    )
    parser.add_argument(
        "--from",
        metavar="FILE",
        type=Path,
        dest="start",
        help="continue training this model, whose vocabulary may be smaller (default: random initialization)",
    )
    parser.add_argument(
        "--without-profile", action="store_true", help="omit the measured cost of the layer from prompts"
    )
    add_renamed(
        parser,
        "--no-target-token",
        former_name="--without-want",
        action="store_true",
        help="omit the target-speedup token from prompts",
    )
    parser.add_argument(
        "--known",
        metavar="N",
        type=integer(0, 8),
        default=_KNOWN,
        help="maximum number of best schedules of similar layers in prompts (default: %(default)s)",
    )
    parser.add_argument(
        "--checkpoints",
        metavar="FOLDER",
        type=Path,
        default=Path("build/llm"),
        help="checkpoint folder, from which an interrupted run resumes (default: %(default)s)",
    )
    parser.add_argument("-o", "--out", metavar="FILE", type=Path, required=True, help="model file to write")
    add_seed(parser)
    add_json(parser)


def _add_sample(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", type=Path, help=f"a .tflite or .onnx file, {REFERENCE}")
    parser.add_argument(
        "--ask",
        choices=ANSWER_TYPES,
        default=ANSWER_TYPES[0],
        help="type of answers: schedules of layers, edits to programs, whole programs, or fusions of two layers "
        "(default: %(default)s)",
    )
    parser.add_argument("--layer", metavar="NAME", help="ask only about this layer (default: all layers)")
    parser.add_argument(
        "--answers",
        metavar="N",
        type=integer(1, 1024),
        default=4,
        help="number of answers per layer (default: %(default)s)",
    )
    parser.add_argument(
        "--unconstrained",
        action="store_true",
        help="sample any token, not only those that the grammar permits",
    )
    parser.add_argument(
        "--on-machine",
        action="store_true",
        help="run the language model on the simulated accelerator",
    )
    _add_model(parser)
    add_compile(parser)
    add_target(parser)
    add_memory(parser)
    add_seed(parser)
    add_json(parser)


def _add_eval(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--layers",
        metavar="N",
        type=integer(1, 1000),
        default=8,
        help="number of held-out layers (default: %(default)s)",
    )
    parser.add_argument(
        "--trials",
        metavar="N",
        type=integer(1, 4096),
        default=16,
        help="number of measured candidates per search with the language model (default: %(default)s)",
    )
    add_renamed(
        parser,
        "--baseline-trials",
        former_name="--others",
        metavar="N",
        type=integer(1, 4096),
        default=64,
        help="number of measured candidates per search with a baseline method (default: %(default)s)",
    )
    parser.add_argument(
        "--methods",
        metavar="M,M,...",
        default="random,evolution,hpm",
        help="baseline methods (default: %(default)s)",
    )
    parser.add_argument(
        "--machine",
        metavar="NAME",
        default=DEFAULT_MACHINE,
        help="hardware profile, from the training corpus or held out (default: %(default)s, alias usual)",
    )
    parser.add_argument(
        "--seeds",
        metavar="N",
        type=integer(1, _SEEDS),
        default=5,
        help="number of searches per method, each with a different seed (default: %(default)s)",
    )
    parser.add_argument(
        "--samples",
        metavar="N",
        type=integer(0, 4096),
        default=0,
        help="also measure N independent answers per layer, without search (default: %(default)s)",
    )
    _add_model(parser)
    add_seed(parser)
    add_json(parser)


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--llm",
        metavar="FILE",
        type=Path,
        help="model file (default: the model included in the compiler)",
    )
    parser.add_argument(
        "--temperature",
        metavar="T",
        type=float,
        default=1.0,
        help="sampling temperature; 0 selects the most likely tokens (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Train, sample or evaluate the language model."""
    from compiler.cli import llm_sample

    check_files(args, *(["out"] if args.action == "train" else []))
    return {"train": _train, "sample": llm_sample.run, "eval": _evaluate}[args.action](args)


def _train(args: argparse.Namespace) -> int:
    """Train the model, write it and print the report."""
    from compiler.llm.data.examples import CORPUS
    from compiler.llm.data.model_graphs import read_graphs
    from compiler.llm.data.trajectories import read
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
        default_plan(args.steps, args.finetune_steps, args.seed, start and start.shape, args.pretrain_graphs),
        profile=not args.without_profile,
        want=not args.no_target_token,
        known=args.known,
    )
    graphs = read_graphs().networks if args.pretrain_graphs else ()
    found = train(trajectories, plan, args.checkpoints, log, start, graphs)
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


def _evaluate(args: argparse.Namespace) -> int:
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
    report(whole, _comparison(whole), args.json)
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


def _comparison(whole: dict[str, Any]) -> str:
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
