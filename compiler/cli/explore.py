"""`mla explore`: compares one model on several targets."""

import argparse
from typing import TYPE_CHECKING, Any

from compiler.cli.compile import REFERENCE, add_compile, compile_model, source_of
from compiler.cli.exit_status import report
from compiler.cli.options import (
    add_clock,
    add_json,
    add_memory,
    add_performance_targets,
    add_samples,
    add_seed,
    check_files,
    performance_targets,
    target_labels,
    targets,
)
from compiler.util.files import PACKAGE_SUFFIX
from compiler.util.tables import Column, counted, figures, format_table
from hw.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compiler.cli.inputs import Sample
    from compiler.runtime.compiled import CompiledNetwork
    from hw.config import MlaConfig

SUMMARY = "compile and run a model on several targets and compare them"
EXAMPLE = "mla explore network.tflite --targets n4,n8,n16 --clock 60"

_FAILED = 1
_WORD_BYTES = 8
#: Measured fields, null for a target that the model does not fit.
_MEASURED = (
    "cycles_per_sample",
    "milliseconds",
    "utilization",
    "energy_uj_per_sample",
    "dram_bytes_per_sample",
    "host_ops",
    "outputs",
    "performance_targets",
)
_HEADINGS = ("target", "cycles", "ms", "utilization", "uJ", "DRAM bytes", "on chip")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command-line options of the verb."""
    add_samples(parser, f"a .tflite or .onnx file, {REFERENCE}")
    parser.add_argument(
        "--targets",
        metavar="T,T,...",
        type=targets,
        required=True,
        help="targets to compare: the same values as for --target of other commands",
    )
    parser.add_argument(
        "--device",
        choices=("rtl", "golden"),
        default="rtl",
        help="device to run on; with the golden model, which has no clock, cycles are null (default: %(default)s)",
    )
    add_clock(parser)
    add_performance_targets(parser)
    add_compile(parser)
    add_memory(parser)
    add_seed(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Compile and run the model on each target; return status 1 if the model fits no target or outputs differ."""
    from compiler.cli.inputs import read_samples
    from compiler.cli.run import warn_about_clock
    from compiler.util.progress import log
    from hw.config import load_target

    check_files(args)
    performance_targets(args)
    warn_about_clock(args)
    configs = {name: load_target(name) for name in args.targets}
    if args.model.suffix.lower() == PACKAGE_SUFFIX:
        raise InputError(f"{args.model} is compiled for one target: explore needs the model itself")
    graph = source_of(args)[0].graph
    labels = target_labels(args.targets)
    rows: list[dict[str, Any]] = []
    samples: Sequence[Sample] | None = None
    for number, (name, config) in enumerate(configs.items(), 1):
        log(f"{name} ({number} of {len(configs)}): compiling")
        try:
            network = compile_model(args, graph=graph, target=name)
        except InputError as error:
            log(f"{name}: {error}")
            rows.append(_row(labels[name], config) | dict.fromkeys(_MEASURED) | {"reason": str(error)})
            continue
        if samples is None:
            samples = read_samples(
                network.sample, args.input, args.limit, args.seed, network, args.input_scale
            )
        rows.append(_row(labels[name], config) | _measured(args, name, network, samples))
    outputs = [row["outputs"] for row in rows if row["outputs"] is not None]
    equal = all(each == outputs[0] for each in outputs)
    document = {
        "model": str(args.model),
        "device": args.device,
        "dram": {
            "latency": args.dram_latency,
            "bytes_per_cycle": args.dram_bytes_per_cycle,
            "throttle": args.throttle,
        },
        "clock_mhz": args.clock,
        "samples": len(samples or ()),
        "targets": rows,
        "outputs_equal": equal if outputs else None,
    }
    report(document, _table(document), args.json)
    return 0 if outputs and equal else _FAILED


def _row(name: str, config: "MlaConfig") -> dict[str, Any]:
    """Return the report fields of a target that are known without a run."""
    memories = {
        "sp_bytes": config.sp_bytes,
        "acc_bytes": config.acc_bytes,
        "wis_bytes": config.wis_words * _WORD_BYTES,
    }
    return {
        "target": name,
        "n": config.n,
        **memories,
        "on_chip_bytes": sum(memories.values()),
        "reason": None,
    }


def _measured(
    args: argparse.Namespace, name: str, network: "CompiledNetwork", samples: "Sequence[Sample]"
) -> dict[str, Any]:
    """Run all samples on one target and return the measured fields."""
    from compiler.cache.content_store import ContentStore
    from compiler.cli.run import judged_targets
    from compiler.runtime.device import open_device
    from compiler.runtime.run_report import back_to_back, document, run_samples
    from compiler.util.progress import log

    def log_named(text: str) -> None:
        log(f"{name}: {text}")

    rate = args.dram_bytes_per_cycle or network.config.beat_bytes
    in_flight = back_to_back(network, len(samples))
    with open_device(
        network, args.device, in_flight, args.dram_latency, rate, log_named, throttle=args.throttle
    ) as device:
        proofs = None if args.no_cache else ContentStore()
        result = run_samples(device, network, samples, log_named, steadily=False, proofs=proofs)
    found = document(network, result, rate)
    cycles, energy = found["cycles_per_sample"], found["energy_uj"]
    clock: float | None = args.clock
    values = (
        cycles,
        None if cycles is None or clock is None else cycles / (1000 * clock),
        found["utilization"],
        None if energy is None else energy / len(samples),
        (found["dram_bytes_read"] + found["dram_bytes_written"]) / len(samples),
        found["host_ops"],
        {output: each["sha256"] for output, each in found["outputs"].items()},
        judged_targets(performance_targets(args), found),
    )
    return dict(zip(_MEASURED, values, strict=True))


def _table(document: dict[str, Any]) -> str:
    """Format one line per target, then a comparison of the outputs."""
    from compiler.options import target_lines

    fitting = [row for row in document["targets"] if row["reason"] is None]
    lines = [f"{document['model']}, {counted(document['samples'], 'sample')}, figures per sample"]
    if fitting:
        columns = [Column(_HEADINGS[0]), *figures(*_HEADINGS[1:])]
        lines.append(format_table(columns, [_cells(row) for row in fitting]))
    lines += [
        f"{row['target']}: {line}" for row in fitting for line in target_lines(row["performance_targets"])
    ]
    lines += [f"{row['target']}: cannot run: {row['reason']}" for row in document["targets"] if row["reason"]]
    if document["outputs_equal"]:
        hashes = ", ".join(f"{name} sha256 {text[:16]}" for name, text in fitting[0]["outputs"].items())
        lines.append(f"outputs are equal on {counted(len(fitting), 'target')}: {hashes}")
    elif fitting:
        lines += [
            f"outputs differ: {row['target']}: {name} sha256 {text[:16]}"
            for row in fitting
            for name, text in row["outputs"].items()
        ]
    return "\n".join(lines)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    formats = (
        (row["target"], "s"),
        (row["cycles_per_sample"], ",.0f"),
        (row["milliseconds"], ",.3f"),
        (row["utilization"], ".1%"),
        (row["energy_uj_per_sample"], ",.1f"),
        (row["dram_bytes_per_sample"], ",.0f"),
        (row["on_chip_bytes"] / 1024, ",.0f"),
    )
    texts = ["-" if value is None else format(value, form) for value, form in formats]
    return (*texts[:-1], f"{texts[-1]} KiB")
