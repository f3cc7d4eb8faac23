"""`mla profile`: attributes the cycles of a model to layers and causes."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.cli.compile import REFERENCE, add_compile
from compiler.cli.exit_status import report, targets_status
from compiler.cli.options import (
    add_clock,
    add_db,
    add_json,
    add_memory,
    add_performance_targets,
    add_samples,
    add_seed,
    add_target,
    check_files,
    performance_targets,
)
from compiler.util.files import write_output
from compiler.util.tables import Column, counted, figures, format_table

if TYPE_CHECKING:
    from compiler.runtime.compiled import CompiledNetwork
    from compiler.tuning_db.entries import Execution

SUMMARY = "run a model on the simulated chip and show where its cycles are spent"
EXAMPLE = "mla profile network.tflite --report network.html --trace network.json"

#: Number of strategies per layer in the table.
_SHOWN_STRATEGIES = 2
#: Maximum number of earlier executions of a layer that are read.
_MAX_HISTORY = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command-line options of the verb."""
    add_samples(parser, f"a .tflite or .onnx file, a .mla file from mla compile, {REFERENCE}")
    parser.add_argument(
        "--trace",
        metavar="FILE.json",
        type=Path,
        help="write a timeline of the units during the first sample, for ui.perfetto.dev",
    )
    parser.add_argument("--report", metavar="FILE.html", type=Path, help="write an HTML report with charts")
    add_clock(parser)
    add_performance_targets(parser)
    add_compile(parser, fuse=True)
    add_db(parser)
    add_target(parser)
    add_memory(parser)
    add_seed(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Compile and run the model, record the activity of the units if requested, and print the report."""
    from compiler.cache.content_store import ContentStore
    from compiler.cli.inputs import read_samples
    from compiler.cli.run import head, judged_targets, keep_executions, named, network_of
    from compiler.options import target_lines
    from compiler.profile.perfetto_trace import spans, trace_json
    from compiler.runtime.device import open_rtl
    from compiler.runtime.run_report import back_to_back, document, run_samples
    from compiler.util.progress import log
    from compiler.visualize.profile_page import page

    check_files(args, "trace", "report")
    goals = performance_targets(args)
    network = network_of(args)
    samples = read_samples(network.sample, args.input, args.limit, args.seed, network, args.input_scale)
    rate = args.dram_bytes_per_cycle or network.config.beat_bytes
    probe = bool(args.trace or args.report)
    in_flight = back_to_back(network, len(samples))
    with (
        named(args.model),
        open_rtl(
            network, in_flight, args.dram_latency, rate, log, probe=probe, throttle=args.throttle
        ) as device,
    ):
        result = run_samples(
            device,
            network,
            samples,
            log,
            recorder=device if probe else None,
            proofs=None if args.no_cache else ContentStore(),
            rate=rate,
        )
    whole = head(args, "rtl", rate) | document(network, result, rate, args.clock)
    whole["performance_targets"] = judged_targets(goals, whole)
    earlier = keep_executions(args, network, result, rate, _MAX_HISTORY)
    shapes = {info.name: info.shape for info in network.infos}
    for layer in whole["layers"]:
        layer |= analysis(layer, network, args.dram_latency, earlier.get(shapes[layer["layers"][0]], ()))
    if args.trace and result.recording:
        names = {layer["tag"]: ", ".join(layer["names"]) for layer in whole["layers"]}
        write_output(args.trace, trace_json(result.recording, names, network.config.beat_bytes).encode())
    if args.report and result.recording:
        clock_hz = args.clock and args.clock * 1e6
        html = page(whole, spans(result.recording), clock_hz=clock_hz, memory=memory_in_use(whole["memory"]))
        write_output(args.report, html.encode())
    report(whole, "\n".join([table(whole), *target_lines(whole["performance_targets"])]), args.json)
    return targets_status(whole["performance_targets"])


def analysis(
    layer: Mapping[str, Any],
    network: "CompiledNetwork",
    latency: int | None,
    earlier: "Sequence[Execution]",
) -> dict[str, Any]:
    """Return the bottleneck of a layer, the strategies against it and the layer's history.

    Parameters
    ----------
    layer : dict
        Entry of the layer in the report.
    network : CompiledNetwork
        Network that was run.
    latency : int or None
        Latency of the DRAM in cycles; None for the default.
    earlier : sequence of Execution
        Earlier executions of the layer, under any conditions and in any network.
    """
    from compiler.options import DEFAULT_DRAM
    from compiler.tuning.strategies import STRATEGY_ORDER, bottleneck_of

    config = network.config
    late = DEFAULT_DRAM.latency if latency is None else latency
    bottleneck = None  # of a layer that is computed together with another one
    if layer["cycles"]:
        bottleneck = bottleneck_of(layer["where"], late, layer["macs"] / config.n**2)
    cycles = [each.cycles for each in earlier]
    return {
        "bottleneck": bottleneck,
        "strategies": [] if bottleneck is None else list(STRATEGY_ORDER[bottleneck]),
        "history": {
            "executions": len(earlier),
            "conditions": len({each.key.profile for each in earlier}),
            "least_cycles": min(cycles, default=None),
            "last_cycles": cycles[-1] if cycles else None,
        },
    }


def table(document: Mapping[str, Any]) -> str:
    """Format a table of each layer's cycles, lower bound, causes, bottleneck and history, followed by the totals."""
    from compiler.cli.run_report import clock_lines, short_name

    total, where = document["cycles"], document["where"]
    causes = [cause for cause, cycles in where.items() if cycles]
    rows = [
        [
            short_name(layer),
            f"{layer['cycles']:,}",
            f"{layer['floor_cycles']:,}",
            *(_share(layer["where"][cause], layer["cycles"]) for cause in causes),
            layer["bound"],
            _advice(layer),
            _before(layer["history"]),
        ]
        for layer in document["layers"]
    ]
    shares = (_share(where[cause], total) for cause in causes)
    rows.append(["sum", f"{total:,}", f"{document['floor_cycles']:,}", *shares, "", "", ""])
    columns = [
        Column("layer", shrinks=True),
        *figures("cycles", "floor", *causes),
        Column("bound by"),
        Column("bottleneck: strategies"),
        Column("earlier"),
    ]
    return "\n".join(
        [
            f"{document['model']} on {document['target']}, {counted(document['samples'], 'sample')}",
            format_table(columns, rows, total=True),
            f"utilization {document['utilization']:.1%}; layerwise lower bound {document['floor_layerwise_cycles']:,} "
            f"cycles; {document['dram_bytes_read']:,} bytes read, {document['dram_bytes_written']:,} written; "
            f"{document['energy_uj']:.1f} uJ",
            *clock_lines(document),
        ]
    )


def _advice(layer: Mapping[str, Any]) -> str:
    strategies = ", ".join(layer["strategies"][:_SHOWN_STRATEGIES])
    return f"{layer['bottleneck']}: {strategies}" if strategies else "-"


def _before(history: Mapping[str, Any]) -> str:
    count = history["executions"]
    return f"{history['least_cycles']:,} in {count}" if count else "-"


def _share(cycles: int, total: int) -> str:
    return f"{cycles / total:.1%}" if cycles and total else "-"


def memory_in_use(memory: Mapping[str, Any]) -> dict[str, int]:
    """Return the bytes in use of each memory whose peak use is known, from the JSON field `memory`."""
    peaks = {name: memory[name]["peak_bytes"] for name in ("scratchpad", "accumulator")}
    return {"DRAM": memory["dram"]["total"]} | {
        name: peak for name, peak in peaks.items() if peak is not None
    }
