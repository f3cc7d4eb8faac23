"""Comparison of search methods, and of the default portfolio with its members, on fixed layers and networks.

`python -m scripts.study_methods --folder build/study_methods` runs every method for 20 layers of published networks and
8 whole networks, two of them transformers, on two memories, with three seeds and 64 trials, without and with edits of
programs, and prints the cycles after 1, 4, 24 and 64 trials. Run the same command again to continue an interrupted run;
`--only-render` only prints the tables of existing results. Measurements are shared by all methods and seeds, but each
method is charged for all that it requests. `--held-out` selects other layers and networks.

The schedules that the methods "copies" and "portfolio" find in a database come from a coordinate search of the same
network on a machine whose memory has half the bandwidth and twice the latency of the usual one.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import exp, log
from pathlib import Path
from random import Random
from statistics import mean
from time import monotonic
from typing import Any

import numpy as np

from compiler.bench.float_networks import Array, EagerBuilder, FloatNetwork, inverted_residuals
from compiler.cache.model_source import ModelSource
from compiler.ir.graph import Graph
from compiler.llm.evaluation import expand_curve
from compiler.llm.generate.lm_generator import LmGenerator
from compiler.llm.model.numpy_transformer import Gpt
from compiler.llm.model.weights import SHIPPED, load
from compiler.options import CompileOptions, DramTiming
from compiler.profile.measurement import HardwareProfile
from compiler.tuning.constraints import UNCONSTRAINED, Constraints, Objective
from compiler.tuning.generators.generator import Candidate, Generator, GeneratorTask
from compiler.tuning.layer_space import spaces_of
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.registry import GENERATORS_METHOD, LLM, PORTFOLIO, RETRIEVAL
from compiler.tuning.search.generator_search import GeneratorSearch
from compiler.tuning.search.method import SearchMethod
from compiler.tuning.search.portfolio import PortfolioSearch
from compiler.tuning.search.program_edit_search import ProgramEditSearch
from compiler.tuning.search.tuner import make_method, tune
from compiler.tuning_db.database import TuningDatabase
from compiler.tuning_db.session import DatabaseSession
from compiler.util.tables import Column, figures, format_table
from hw.config import load_target
from scripts.jsonl_log import JsonlLog
from scripts.measurement_cache import FileCache
from scripts.networks.digits import MODEL as DIGITS
from scripts.process_pool import run_parallel
from scripts.published_layers import CONFIRMATION_LAYERS, PUBLISHED_LAYERS, memory, network_of
from scripts.study_macro_instructions import FAMILIES

#: Numbers of trials after which methods are compared.
COUNTS = (1, 4, 24, 64)
MEMORIES = ("usual", "slow")
_SLOW_LATENCY, _SLOW_SHARE = 400, 0.25
_NEIGHBOUR_LATENCY, _NEIGHBOUR_SHARE, _NEIGHBOUR_TRIALS, _NEIGHBOUR_SEED = 200, 0.5, 24, 99
_NO_EDITS = Constraints(frozenset({"micro-program"}))
#: Share of the layers whose schedules are drawn by `UniformGenerator`, and maximum number of draws per task.
_DRAWN_FRACTION, _MAX_DRAWS = 0.25, 400
#: Largest loss of the default method against the best method of a column.
BAR = 0.005

#: The 20 layers of `scripts.published_layers` that take the fewest cycles with the static compiler's schedules and the
#: usual memory (n16), so that a trial takes a tenth of a second; selected before any method was run on them here.
LAYERS = (
    "efficientnet_b0 squeeze",
    "efficientnet_b0 excite",
    "mobilenet_v1_025 average",
    "lenet5 first",
    "ds_cnn depthwise",
    "resnet8 shortcut",
    "mobilenet_v1_025_96 pointwise",
    "resnet20 addition",
    "ds_cnn pointwise",
    "mobilenet_v1_025_96 deep pointwise",
    "mobilenet_v1_025_96 first",
    "mobilenet_v2_035 expansion",
    "lenet5 dense",
    "bert_tiny softmax",
    "bert_tiny projection",
    "mobilenet_v2_035 projection",
    "lstm gates",
    "resnet20 strided",
    "mobilenet_v3_small expansion",
    "mobilenet_v2_050 depthwise",
)
#: Layers that are measured with `--held-out`, with which changes of the portfolio are checked.
HELD_OUT_LAYERS = (
    "efficientnet_b0 depthwise",
    "resnet20 last stage",
    "shufflenet_v2 depthwise",
    "densenet121 growth",
    "ad01 first",
    "squeezenet11 expand",
    "mobilenet_v3_small projection",
    "alexnet cifar pool",
    "transformer softmax",
    "vit_tiny norm",
)


class UniformGenerator(Generator):
    """Generator of uniform draws from the schedules of a quarter of the layers."""

    name = "uniform"

    def propose(self, task: GeneratorTask) -> Iterator[Candidate]:
        """Yield random schedules of some of the task's layers."""
        stages = task.prepared.lowered(task.schedule.fusions)
        frozen = task.constraints.frozen_fields
        spaces = spaces_of(task.prepared.config, stages, task.conditions.dram, frozen)
        names = [name for name in task.layers if name in spaces]
        rng = Random(f"{task.seed} {task.layers} {task.schedule.to_json()}")
        for _ in range(_MAX_DRAWS):
            chosen = [name for name in names if rng.random() < _DRAWN_FRACTION] or [rng.choice(names)]
            layers = {name: spaces[name].draw(rng, task.schedule.layers[name]) for name in chosen}
            yield task.with_layers(layers, self.name, "uniform draw")


def _random(*shape: int) -> Callable[[np.random.Generator, int], Array]:
    """Return a source of normally distributed samples."""
    return lambda rng, count: rng.standard_normal((count, *shape)).astype(np.float32)


def _residual_network() -> FloatNetwork:
    """Return a residual network of two basic blocks, the second of which has a stride."""
    net = EagerBuilder("residual_network", _random(3, 8, 8))
    x = net.op("Relu", net.conv("x", 16))
    for outputs, stride in ((16, 1), (32, 2)):
        y = net.op("Relu", net.conv(x, outputs, 3, stride))
        y = net.conv(y, outputs, gain=0.7, shift=0.0)
        x = x if stride == 1 else net.conv(x, outputs, 1, stride)
        x = net.op("Relu", net.op("Add", x, y))
    return net.network(net.linear(net.pooled(x), 10))


def _inverted_residuals() -> FloatNetwork:
    """Return a network like MobileNetV2 with three inverted residual blocks."""
    net = EagerBuilder("inverted_residuals", _random(3, 16, 16))
    x, width = net.relu6(net.conv("x", 16, 3, 2)), 16
    x = inverted_residuals(net, x, width, ((1, 3, 8, 1, 1), (4, 3, 16, 2, 2)))
    return net.network(net.linear(net.pooled(net.relu6(net.conv(x, 64, 1))), 10))


def _keyword_spotter() -> FloatNetwork:
    """Return a keyword spotter like DS-CNN with two separable convolutions."""
    net = EagerBuilder("keyword_spotter", _random(1, 25, 10))
    x = net.op("Relu", net.conv("x", 32, (5, 4), 2))
    for _ in range(2):
        x = net.op("Relu", net.conv(x, 32, groups=32))
        x = net.op("Relu", net.conv(x, 32, 1))
    return net.network(net.op("Softmax", net.linear(net.pooled(x), 12), axis=-1))


def _autoencoder() -> FloatNetwork:
    """Return an autoencoder of six dense layers with a bottleneck of eight values."""
    net, x = EagerBuilder("autoencoder", _random(160)), "x"
    for width in (64, 64, 8, 64, 64):
        x = net.op("Relu", net.linear(x, width))
    return net.network(net.linear(x, 160))


def _segmenter() -> FloatNetwork:
    """Return a U-Net of two levels."""
    net = EagerBuilder("segmenter", _random(1, 16, 16))
    skip = net.op("Relu", net.conv("x", 8))
    x = net.op("MaxPool", skip, kernel_shape=[2, 2], strides=[2, 2])
    x = net.op("Relu", net.conv(x, 16))
    weights, bias = net.normal(16, 8, 2, 2, scale=0.25), net.normal(8, scale=0.1)
    up = net.op("ConvTranspose", x, weights, bias, kernel_shape=[2, 2], strides=[2, 2])
    x = net.op("Relu", net.conv(net.op("Concat", up, skip, axis=1), 8))
    return net.network(net.conv(x, 4, 1))


def _transformer(name: str, tokens: int, heads: int) -> FloatNetwork:
    """Return an encoder of two transformer blocks of width 32."""
    net, x = EagerBuilder(name, _random(tokens, 32)), "x"
    for _ in range(2):
        x = net.transformer(x, heads)
    return net.network(net.linear(net.layer_norm(x), 10))


_FLOAT: dict[str, Callable[[], FloatNetwork]] = {
    "residual_network": _residual_network,
    "inverted_residuals": _inverted_residuals,
    "keyword_spotter": _keyword_spotter,
    "autoencoder": _autoencoder,
    "segmenter": _segmenter,
    "image_encoder": partial(_transformer, "image_encoder", 16, 2),
    "text_encoder": partial(_transformer, "text_encoder", 8, 4),
}
#: Whole networks of 3,000 to 16,000 cycles, fixed before any method was run on them.
NETWORKS = ("digits", *_FLOAT)
#: Whole networks that are measured with `--held-out`: those of `scripts.study_macro_instructions`.
HELD_OUT_NETWORKS = tuple(FAMILIES)


def _source(case: str, folder: Path) -> tuple[Graph, CompileOptions]:
    """Return the graph of a layer or network, and the options for compiling it."""
    if case in PUBLISHED_LAYERS | CONFIRMATION_LAYERS:
        return network_of(case).graph(), CompileOptions(rounding="reference")
    file = DIGITS if case == "digits" else folder / f"{case}.onnx"
    if not file.exists():
        if case in FAMILIES:
            build, blocks, _ = FAMILIES[case]
            model = build(1, blocks, 10)
        else:
            model = _FLOAT[case]().model
        assert not isinstance(model, Graph)
        file.write_bytes(model.SerializeToString())
    source = ModelSource(file)
    return source.graph, CompileOptions(rounding=source.rounding)


Given = tuple[Measurer, Objective, Any, int, Constraints]
#: Methods by the name of their column; the session is that of the database with the neighbour's schedules.
METHODS: dict[str, Callable[[Given, DatabaseSession], SearchMethod]] = {
    "copies": lambda given, session: make_method(RETRIEVAL, *given, session=session),
    "uniform": lambda given, _session: GeneratorSearch(*given, generators=[UniformGenerator()]),
    "coordinate": lambda given, _session: make_method("coordinate", *given),
    "hpm": lambda given, _session: make_method("hpm", *given),
    "generators": lambda given, _session: make_method(GENERATORS_METHOD, *given),
    LLM: lambda given, _session: make_method(LLM, *given, language_model=_language_model()),
    PORTFOLIO: lambda given, session: make_method(
        PORTFOLIO, *given, language_model=_language_model, session=session
    ),
}
#: Columns that are measured if none are given: all but that of a member of the portfolio.
DEFAULT_COLUMNS = tuple(column for column in METHODS if column != GENERATORS_METHOD)


@cache
def _weights() -> Gpt:
    """Return the built-in language model, which all searches share."""
    return load(SHIPPED)[0]


def _language_model() -> LmGenerator:
    return LmGenerator(_weights())


def method_of(column: str, edits: bool, given: Given, session: DatabaseSession) -> SearchMethod:
    """Return the method of a column; with edits, methods other than the portfolio alternate with edits of programs."""
    measurer, goal, baseline, seed, _ = given
    if not edits:
        return METHODS[column]((measurer, goal, baseline, seed, _NO_EDITS), session)
    if column == PORTFOLIO:
        return METHODS[column](given, session)
    members: dict[str, Callable[[], SearchMethod]] = {
        column: lambda: METHODS[column](given, session),
        "edits": lambda: ProgramEditSearch(*given, patience=0),
    }
    return PortfolioSearch(*given, members=members, priors={column: 1.0, "edits": 0.3})


@dataclass(frozen=True)
class MethodsJob:
    """Searches for one network on one machine.

    Parameters
    ----------
    target, memory, case : str
        Names of the target, of the memory in MEMORIES, and of the layer or network.
    searches : tuple of (str, bool, int)
        Column, with edits or without, and seed of each search that remains to be run.
    trials : int
        Number of trials of each search.
    """

    target: str
    memory: str
    case: str
    searches: tuple[tuple[str, bool, int], ...]
    trials: int

    def key(self, column: str, edits: bool, seed: int) -> str:
        """Return the key of a search in the results."""
        return f"{self.target} {self.memory} {self.case}: {column} {int(edits)} {seed} {self.trials}"


def main() -> int:
    """Run all searches and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", nargs="*", default=["n16"], help="targets (default: n16)")
    parser.add_argument("--cases", nargs="*", default=[*LAYERS, *NETWORKS], help="layers and networks")
    parser.add_argument(
        "--held-out", action="store_true", help="other layers and networks, for checking a change"
    )
    parser.add_argument("--memories", nargs="*", choices=MEMORIES, default=MEMORIES)
    parser.add_argument("--columns", nargs="*", choices=list(METHODS), default=DEFAULT_COLUMNS)
    parser.add_argument("--edits", nargs="*", type=int, choices=(0, 1), default=(0, 1))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--folder", type=Path, default=Path("build/study_methods"))
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only-render", action="store_true", help="print the tables of existing results")
    args = parser.parse_args()
    if args.held_out:
        args.cases = [*HELD_OUT_LAYERS, *HELD_OUT_NETWORKS]
    results = JsonlLog(args.folder / "results.jsonl")
    done = {row["key"] for row in results.read()}
    every = [(column, bool(edits)) for column in args.columns for edits in args.edits]
    # The first seed on all cases and memories comes first, so that an interrupted run has complete columns.
    jobs = [
        MethodsJob(
            target, memory_name, case, tuple((*each, seed) for seed in seeds for each in every), args.trials
        )
        for seeds in (range(args.seeds)[:1], range(args.seeds)[1:])
        for target in args.target
        for memory_name in args.memories
        for case in args.cases
        if seeds
    ]
    wanted = {job.key(*search) for job in jobs for search in job.searches}
    status = 0
    if not args.only_render:
        left = [
            MethodsJob(job.target, job.memory, job.case, searches, job.trials)
            for job in jobs
            if (searches := tuple(each for each in job.searches if job.key(*each) not in done))
        ]
        print(f"{sum(len(job.searches) for job in left)} of {len(wanted)} searches left", flush=True)
        status = run_parallel(run, left, args.workers, args.folder)
    print(render([row for row in results.read() if row["key"] in wanted], args.trials))
    return status


def run(job: MethodsJob, folder: Path) -> None:
    """Run searches and append their results to the file."""
    config, began = load_target(job.target), monotonic()
    dram = memory(config, "usual")
    if job.memory == "slow":
        dram = DramTiming(_SLOW_LATENCY, config.n * _SLOW_SHARE)
    folder.mkdir(parents=True, exist_ok=True)
    graph, options = _source(job.case, folder)
    conditions = HardwareProfile(config, dram)
    name = f"{job.target}-{job.case.replace(' ', '_')}"
    results = JsonlLog(folder / "results.jsonl")
    with (
        TuningDatabase(_database(name, job, graph, options, folder)) as database,
        Measurer(graph, conditions, options) as measurer,
    ):
        measurer.cache = FileCache(measurer.prepared, conditions, folder / f"{name}-{job.memory}.jsonl")
        session = DatabaseSession(database, measurer.prepared, conditions, Objective.LATENCY)
        for column, edits, seed in job.searches:
            measurer.measurement_count = 0  # all searches use the same numbered inputs
            given = (measurer, Objective.LATENCY, measurer.baseline(), seed, UNCONSTRAINED)
            method, start = method_of(column, edits, given, session), monotonic()
            found = tune(measurer, method, job.trials, seed=seed, constraints=method.constraints)
            results.add(
                {
                    "key": job.key(column, edits, seed),
                    "target": job.target,
                    "memory": job.memory,
                    "case": job.case,
                    "column": column,
                    "edits": edits,
                    "seed": seed,
                    "static": found.baseline.cycles,
                    "curve": expand_curve(found.curve, job.trials),
                    "proposers": {each: vars(record) for each, record in found.proposers.items()},
                    "left_out": [str(failure) for failure in found.left_out],
                    "seconds": round(monotonic() - start, 2),
                }
            )
    print(f"{job.target} {job.memory} {job.case}: {monotonic() - began:.0f} s", flush=True)


def _database(name: str, job: MethodsJob, graph: Graph, options: CompileOptions, folder: Path) -> Path:
    """Return the database with the neighbour's search of a network, which is run if it is missing."""
    config = load_target(job.target)
    conditions = HardwareProfile(config, DramTiming(_NEIGHBOUR_LATENCY, config.n * _NEIGHBOUR_SHARE))
    path = folder / f"{name}.db"
    if not path.exists():
        draft = path.with_suffix(f".{os.getpid()}")
        with TuningDatabase(draft) as database, Measurer(graph, conditions, options) as measurer:
            session = DatabaseSession(database, measurer.prepared, conditions, Objective.LATENCY)
            measurer.cache = session
            tune(measurer, "coordinate", _NEIGHBOUR_TRIALS, seed=_NEIGHBOUR_SEED, session=session)
        draft.rename(path)
    return path


def render(rows: Sequence[dict[str, Any]], trials: int) -> str:
    """Return the tables: cycles relative to the static compiler's, and the gain per trial of each method.

    Only the searches of cases, memories and seeds for which all methods were run are used.
    """
    present = {(row["column"], row["edits"]) for row in rows}
    order = [(column, edits) for column in METHODS for edits in (False, True) if (column, edits) in present]
    cells: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["target"], row["memory"], row["case"], row["seed"]), []).append(row)
    rows = [row for cell in cells.values() if len(cell) == len(order) for row in cell]
    layers = PUBLISHED_LAYERS | CONFIRMATION_LAYERS
    columns = [(memory_name, count) for memory_name in MEMORIES for count in COUNTS if count <= trials]
    lines = []
    for where in ("layers", "networks"):
        chosen = [row for row in rows if (row["case"] in layers) == (where == "layers")]
        of_memory = {name: [row for row in chosen if row["memory"] == name] for name in MEMORIES}
        shown = [(name, count) for name, count in columns if of_memory[name]]
        if not shown:
            continue
        for name, found in of_memory.items():
            cases, seeds = ({row[key] for row in found} for key in ("case", "seed"))
            lines.append(f"{name} memory: {len(cases)} {where}, seeds {', '.join(map(str, sorted(seeds)))}")
        ratios = {
            (*method, *column): _ratio(of_memory[column[0]], *method, column[1])
            for method in order
            for column in shown
        }
        table = [
            [_label(*method), *(f"{ratios[(*method, *column)]:.4f}" for column in shown)] for method in order
        ]
        headings = figures(*(f"{name}, {count}" for name, count in shown))
        lines.append(
            f"{where}: cycles relative to the static compiler's (geometric mean), by number of trials"
        )
        lines.append(format_table([Column("method"), *headings], table))
        for edits in (False, True):
            if (PORTFOLIO, edits) in order:
                best = [
                    min(ratios[(*each, *column)] for each in order if each[1] <= edits) for column in shown
                ]
                loss = [
                    ratios[PORTFOLIO, edits, *column] / least - 1
                    for column, least in zip(shown, best, strict=True)
                ]
                held = "held" if max(loss) <= BAR else "missed"
                text = ", ".join(f"{each:+.2%}" for each in loss)
                lines.append(f"{_label(PORTFOLIO, edits)} against the best: {text} ({held})")
    lines.append(_gains(rows, trials))
    return "\n".join(lines)


def _label(column: str, edits: bool) -> str:
    return f"{column} + edits" if edits else column


@cache
def _windows(trials: int) -> tuple[tuple[int, int], ...]:
    starts = (0, 1, 4, 24)
    return tuple((a, min(b, trials)) for a, b in zip(starts, COUNTS, strict=True) if a < trials)


def _gains(rows: Sequence[dict[str, Any]], trials: int) -> str:
    """Return the mean relative gain per trial of each method without edits, in percent, by number of trials."""
    windows = _windows(trials)
    table = []
    for column in METHODS:
        mine = [row for row in rows if row["column"] == column and not row["edits"]]
        if mine:
            gains = [
                mean(log(row["curve"][a] / row["curve"][b]) / (b - a) for row in mine) for a, b in windows
            ]
            seconds = mean(row["seconds"] for row in mine) / trials
            table.append([column, *(f"{100 * gain:.3f}%" for gain in gains), f"{seconds:.2f}"])
    names = [f"{a + 1}-{b}" if b > a + 1 else f"{b}" for a, b in windows]
    return "gain per trial\n" + format_table([Column("method"), *figures(*names, "seconds per trial")], table)


def _ratio(rows: Sequence[dict[str, Any]], column: str, edits: bool, count: int) -> float:
    """Return the geometric mean, over cases and seeds, of a method's cycles after some trials to the static ones."""
    mine = [row for row in rows if (row["column"], row["edits"]) == (column, edits)]
    return exp(mean(log(row["curve"][count] / row["static"]) for row in mine))


if __name__ == "__main__":
    sys.exit(main())
