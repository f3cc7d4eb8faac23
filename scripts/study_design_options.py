"""Gain of design options that the machine does not have: a wider bus, second read ports, and an array that splits.

`python -m scripts.study_design_options` compiles networks for a target and runs them on the RTL, with full, half, a
quarter and twice the DRAM bandwidth and without latency; all outputs are compared with the golden model. From the
cycles, the counters and the commands it derives, for each option, a bound that no program with these commands can
exceed, or an estimate by the timeline of the commands (`compiler/cost/timeline.py`). Results are appended to a file,
and networks that it contains are not measured again; `--networks` also accepts model files.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import getitem
from pathlib import Path
from statistics import geometric_mean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import compiler
from compiler.bench import tiny
from compiler.bench.architectures import NETWORKS, model_file
from compiler.codegen.executable import CommandStream
from compiler.commands.commands import Command, cycles
from compiler.cost.timeline import fuse_cycles, timeline_cycles
from compiler.ir.graph import Graph
from compiler.llm.model.accelerated import export
from compiler.llm.model.numpy_transformer import Gpt, TransformerShape
from compiler.options import DramTiming
from compiler.pipeline import CompilationTrace
from compiler.profile.counters import CONFLICTS, growth, split
from compiler.quantize.ranges import random_samples
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.device import open_device
from compiler.runtime.session import Session, dram_bytes
from cosim.golden import GoldenDevice
from cosim.semantics.command_fields import unpack_fields
from hw.config import DEFAULT_TARGET, MlaConfig, load_target
from hw.errors import InputError, WorkError
from hw.isa.counters import CAUSES
from hw.isa.enums import Unit
from scripts.jsonl_log import JsonlLog

#: Decoder layer with the sizes of GPT-2 small, whose next token is computed with a cache of 255 earlier ones.
_DECODER = TransformerShape(words=1024, width=768, heads=12, layers=1, hidden=3072, context=256)
_SEED, _LATENCY = 0, 100
DECODER = "gpt_decode"
#: Networks that are measured by default.
SUITE = (*tiny.NETWORKS, "mobilenet_v2", "bert_layer", DECODER)
#: Name of each memory: latency, and bandwidth as a multiple of a beat per cycle. With 2, reads and writes of n bytes
#: each are possible in one cycle; "ideal" also has no latency.
MEMORIES = {
    "full": (_LATENCY, 1.0),
    "half": (_LATENCY, 0.5),
    "quarter": (_LATENCY, 0.25),
    "double": (_LATENCY, 2.0),
}
MEMORIES |= {"ideal": (1, 2.0)}
_COUNTERS = (
    *(f"cause_{cause}" for cause in CAUSES),
    "cycles",
    *(f"{unit.name.lower()}_stall_bank" for unit in Unit),
    *("load_beats", "store_beats"),
    *CONFLICTS,
)
#: Units whose reads a bank of the scratchpad may refuse.
_READERS = ("MATRIX", "FUSE", "STORE")
#: Ways to split the array into equal parts, by name.
SPLITS = ("outputs", "inputs", "quarters")


def parts(split_by: str, k: int, c: int, n: int) -> int:
    """Return how many parts of a split array can work at the same time on tiles of weights of k rows and c columns.

    Parameters
    ----------
    split_by : str
        "outputs": two parts of n rows and n/2 columns; "inputs": two of n/2 rows and n columns; "quarters": four of
        n/2 rows and n/2 columns, of which pairs can work as one of the former.
    k, c : int
        Rows and columns of the tile that have weights.
    n : int
        Rows and columns of the array.
    """
    columns = 2 if split_by != "inputs" and 2 * c <= n else 1
    rows = 2 if split_by != "outputs" and 2 * k <= n else 1
    return columns * rows


def split_cycles(config: MlaConfig, command: Command, values: Sequence[int], split_by: str) -> float:
    """Return the cycles of a MATRIX command if the parts of a split array share the work of each tile.

    Parameters
    ----------
    values : sequence of int
        All fields of the command, in the order of its table.
    """
    n, c = config.n, unpack_fields(Unit.MATRIX, list(values))
    columns = c.n_cols or n
    if c.dw:
        rows, blocks = [(c.taps * c.groups, 1)], c.oc_count
    else:
        k = c.k_rows or n
        rows, blocks = [(k, c.ic_count - 1), (c.k_tail or k, 1)], c.oc_count
    share = sum(
        many * times / parts(split_by, k, width, n)
        for k, many in rows
        for width, times in ((columns, blocks - 1), (c.n_tail or columns, 1))
    ) / (blocks * sum(many for _, many in rows))
    return cycles(command, config) * share


def wide_bus_bound(full: int, half: int, beats: int, units: int) -> int:
    """Return a lower bound on the cycles of the same commands with twice the bandwidth and a bus of twice the width.

    Cycles are the length of the longest chain of events, so they are a convex function of the time per byte: doubling
    the bandwidth saves at most half of what halving it costs. It also saves at most half of the beats' cycles, and no
    unit takes less than its own work.

    Parameters
    ----------
    full, half : int
        Cycles with a beat per cycle, and with half of that bandwidth.
    beats : int
        Beats read and written.
    units : int
        Cycles of the commands of MATRIX or of FUSE, whichever are more.
    """
    return max(full - max(half - full, 0) // 2, full - beats // 2, min(units, full))


@dataclass(frozen=True)
class Measured:
    """Network with its measurements on the RTL.

    Parameters
    ----------
    cycles : dict
        Cycles with each of MEMORIES.
    counts : dict
        Counters of the run with full bandwidth, summed over all tags.
    by_tag : dict
        Cycles of this run by tag.
    causes : dict
        Cycles of this run by cause.
    """

    cycles: dict[str, int]
    counts: dict[str, int]
    by_tag: dict[int, int]
    causes: dict[str, int]


def measure(network: CompiledNetwork, inputs: Mapping[str, NDArray]) -> Measured:
    """Run a sample with each memory.

    Raises
    ------
    InputError
        All of the network runs on the host.
    WorkError
        An output differs from the golden model's.
    """
    tags = [tag for code in network.codes for tag in code.tags]
    if not tags:
        raise InputError(f"{network.name}: all operators run on the host, so there is nothing to measure")
    with GoldenDevice(network.config, dram_bytes(network)) as golden:
        expected = Session(golden, network).run(inputs)
    taken: dict[str, int] = {}
    with open_device(network, say=_log) as device:
        session = Session(device, network)
        session.progress = lambda count: _log(f"{count:,} cycles so far")

        def read() -> dict[int, dict[str, int]]:
            return {tag: session.driver.counters.read_all(_COUNTERS, tag) for tag in range(max(tags) + 1)}

        counts: dict[int, dict[str, int]] = {}
        for name, (latency, share) in MEMORIES.items():
            device.set_dram_timing(latency, share * network.config.n)
            before = {} if counts else read()
            outputs, taken[name] = session.measure(inputs)
            counts = counts or growth(before, read())
            _log(f"{name}: {taken[name]:,} cycles")
            for output, array in expected.items():
                if not np.array_equal(array, outputs[output]):
                    raise WorkError(f"{network.name}: output {output!r} differs from the golden model's")
    found = split(taken["full"], counts, tags[-1])
    totals = {name: sum(row[name] for row in counts.values()) for name in _COUNTERS}
    return Measured(taken, totals, {tag: sum(row.values()) for tag, row in found.by_tag.items()}, found.where)


def options(
    config: MlaConfig, network: CompiledNetwork, streams: Sequence[CommandStream], run: Measured
) -> dict[str, Any]:
    """Return the measurements, and bounds and estimates of the cycles with each option, as JSON fields."""
    full, counts, dram = run.cycles["full"], run.counts, DramTiming(_LATENCY)
    half = DramTiming(_LATENCY, config.n / 2)
    predicted = timeline_cycles(config, streams, dram)

    def estimate(changed: Iterable[CommandStream], machine: MlaConfig = config) -> float:
        return full * min(timeline_cycles(machine, changed, dram) / predicted, 1.0)

    work, fewer = dict.fromkeys(Unit, 0), 0
    for stream in streams:
        for command, issued in zip(stream.commands, stream.issued, strict=True):
            work[command.unit] += cycles(command, config)
            if command.unit == Unit.FUSE:
                fields = unpack_fields(Unit.FUSE, list(issued.values))
                fewer += fuse_cycles(config, fields) - fuse_cycles(config, fields, 2)
    beats = counts["load_beats"] + counts["store_beats"]
    units = max(work[Unit.MATRIX], work[Unit.FUSE])
    # A bank refuses reads of MATRIX's weights, of FUSE and of STORE, and writes of LOAD.
    refused = sum(counts[name] for name in CONFLICTS if name.startswith("sp_")) - counts["load_stall_bank"]
    conflicts = {
        "matrix": counts["matrix_stall_bank"],
        "fuse": refused - counts["matrix_stall_bank"] - counts["store_stall_bank"],
        "store": counts["store_stall_bank"],
        "accumulator": counts["acc_conflicts"],
    }
    divided = {each: _split_bound(config, network, streams, run, each) for each in SPLITS}
    return {
        "cycles": run.cycles,
        "predicted": {"full": predicted, "half": timeline_cycles(config, streams, half)},
        "useful": run.causes["useful"],
        "wait_bus": run.causes["wait_bus"],
        "beats": beats,
        "conflicts": conflicts,
        "second_reads": fewer,
        "bus": {
            "bound": wide_bus_bound(full, run.cycles["half"], beats, units),
            "estimate": estimate(streams, replace(config, bus_bytes=2 * config.n)),
        },
        "ports": {"bound": max(full - sum(conflicts.values()) - fewer, run.causes["useful"])},
        "split": {
            name: {"bound": bound, "estimate": estimate(changed)}
            for name, (bound, changed) in divided.items()
        },
    }


def _split_bound(
    config: MlaConfig,
    network: CompiledNetwork,
    streams: Sequence[CommandStream],
    run: Measured,
    split_by: str,
) -> tuple[float, list[CommandStream]]:
    """Return a bound on the cycles with a split array, and the commands with their cycles on it.

    For the bound, all cycles of a layer, also those in which the array waits, shrink as those of its MATRIX commands.
    """
    before, after = dict.fromkeys(run.by_tag, 0.0), dict.fromkeys(run.by_tag, 0.0)
    changed = []
    for code, stream in zip(network.codes, streams, strict=True):
        commands = list(stream.commands)
        for number, (command, issued) in enumerate(zip(stream.commands, stream.issued, strict=True)):
            if command.unit == Unit.MATRIX:
                taken, tag = split_cycles(config, command, issued.values, split_by), code.tags[issued.layer]
                before[tag] += cycles(command, config)
                after[tag] += taken
                commands[number] = replace(command, cycles=round(taken))
        changed.append(replace(stream, commands=commands))
    bound = sum(taken * (after[tag] / before[tag] if before[tag] else 1) for tag, taken in run.by_tag.items())
    return bound, changed


def study(model: Path | Graph, config: MlaConfig) -> dict[str, Any]:
    """Compile and measure a network, and return its results as JSON fields.

    Raises
    ------
    InputError
        The model cannot be compiled.
    """
    trace = CompilationTrace()
    network = compiler.compile(model, config, record=trace)
    (inputs,) = random_samples(trace.graphs["imported"], _SEED, 1)
    return options(config, network, trace.streams, measure(network, inputs))


def find_model(name: str, folder: Path) -> Path:
    """Return the file of a network of `mla bench` or of DECODER, or the path that the name is.

    The file of DECODER is written to `folder`.
    """
    if name in tiny.NETWORKS:
        return tiny.model_path(name)
    if name != DECODER:
        return model_file(name) if name in NETWORKS else Path(name)
    rng = np.random.default_rng(_SEED)
    weights = {
        name: np.asarray(rng.standard_normal(size) * size[-1] ** -0.5 if len(size) > 1 else np.ones(size))
        for name, size in _DECODER.tensors.items()
    }
    path = folder / f"{name}.onnx"
    path.write_bytes(export(Gpt(_DECODER, weights), _DECODER.context).SerializeToString())
    return path


class Figure(NamedTuple):
    """Column of a table: its heading, its value for the results of a network, and the format of values.

    If `mean` is set, the last line of the table has the geometric mean of 1 + value.
    """

    heading: str
    value: Callable[[Mapping[str, Any]], float]
    form: str = ".1%"
    mean: bool = False


def tables(rows: Sequence[Mapping[str, Any]], config: MlaConfig) -> str:
    """Return results as four Markdown tables: memories, wide bus, ports, split array."""
    n = config.n
    halves = (f"two {n}x{n // 2}", f"two {n // 2}x{n}", f"four {n // 2}x{n // 2}")
    memories = [
        Figure("cycles", _cycles, ","),
        *(
            _speed(name, f"{share * n:g} B, latency {wait}")
            for name, (wait, share) in MEMORIES.items()
            if name != "full"
        ),
        *(_error(name, f"timeline, {MEMORIES[name][1] * n:g} B") for name in ("full", "half")),
    ]
    bus = [_share("waits for DRAM", "wait_bus"), _share("beats", "beats")]
    ports = [_share(unit, "conflicts", unit.lower(), form=".2%") for unit in (*_READERS, "accumulator")]
    ports.append(_share("reads of FUSE", "second_reads"))
    both = ("bound", "estimate")
    return "\n\n".join(
        _table(rows, figures)
        for figures in (
            memories,
            [*bus, *(_gain(kind, "bus", kind) for kind in both)],
            [*ports, _gain("bound", "ports", "bound")],
            [
                _share("rows enter", "useful"),
                *(
                    _gain(f"{half}, {kind}", "split", name, kind)
                    for name, half in zip(SPLITS, halves, strict=True)
                    for kind in both
                ),
            ],
        )
    )


def _cycles(row: Mapping[str, Any]) -> int:
    return row["cycles"]["full"]


def _at(row: Mapping[str, Any], keys: Iterable[str]) -> Any:
    return reduce(getitem, keys, row)


def _share(heading: str, *keys: str, form: str = ".1%") -> Figure:
    """Return the column of a number of cycles, as a share of all."""
    return Figure(heading, lambda row: _at(row, keys) / _cycles(row), form)


def _gain(heading: str, *keys: str) -> Figure:
    """Return the column of the gain if the network takes a number of cycles, in speed."""
    return Figure(heading, lambda row: _cycles(row) / _at(row, keys) - 1, mean=True)


def _speed(memory: str, heading: str) -> Figure:
    return Figure(heading, lambda row: _cycles(row) / row["cycles"][memory], ".3f")


def _error(memory: str, heading: str) -> Figure:
    return Figure(heading, lambda row: row["predicted"][memory] / row["cycles"][memory] - 1, "+.1%")


def _table(rows: Sequence[Mapping[str, Any]], figures: Sequence[Figure]) -> str:
    lines = [["network", *(each.heading for each in figures)], ["---", *["--:"] * len(figures)]]
    lines += [[row["network"], *(f"{each.value(row):{each.form}}" for each in figures)] for row in rows]
    if any(each.mean for each in figures):
        means = (geometric_mean(1 + each.value(row) for row in rows) - 1 for each in figures)
        shown = (
            f"{mean:{each.form}}" if each.mean else "" for mean, each in zip(means, figures, strict=True)
        )
        lines.append(["geometric mean", *shown])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _log(text: str) -> None:
    print(f"study: {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Measure the networks that are not in the file, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--networks",
        nargs="+",
        default=SUITE,
        help="networks of `mla bench`, the decoder, or model files (default: %(default)s)",
    )
    parser.add_argument("--target", default=DEFAULT_TARGET, help="target (default: %(default)s)")
    parser.add_argument(
        "--file", type=Path, default=Path("build/design_options.jsonl"), help="results (default: %(default)s)"
    )
    args = parser.parse_args()
    try:
        config, log = load_target(args.target), JsonlLog(args.file)
        known = {(each["target"], each["network"]): each for each in log.read()}
        for name in args.networks:
            key = args.target, name
            if key not in known:
                _log(name)
                with TemporaryDirectory() as folder:
                    found = study(find_model(name, Path(folder)), config)
                known[key] = {"target": args.target, "network": name} | found
                log.add(known[key])
    except (InputError, WorkError) as error:
        _log(str(error))
        return 2
    print(tables([known[args.target, name] for name in args.networks], config))
    return 0


if __name__ == "__main__":
    sys.exit(main())
