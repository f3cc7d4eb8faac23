"""`mla run`: compiles and runs a model."""

import argparse
import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.cli.compile import (
    REFERENCE,
    add_compile,
    add_dispatch,
    compile_model,
    report_provenance,
)
from compiler.cli.exit_status import report, targets_status, warn
from compiler.cli.options import (
    add_clock,
    add_db,
    add_json,
    add_memory,
    add_performance_targets,
    add_reset,
    add_samples,
    add_seed,
    add_target,
    check_files,
    check_reset,
    performance_targets,
    used_database,
)
from compiler.util.files import PACKAGE_SUFFIX, write_output
from compiler.util.progress import log

if TYPE_CHECKING:
    from compiler.options import PerformanceTargets
    from compiler.runtime.compiled import CompiledNetwork
    from compiler.runtime.run_report import Run
    from compiler.tuning_db.entries import Execution

SUMMARY = "compile a model and run it"
EXAMPLE = "mla run network.tflite --input images.npy --json -"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command-line options of the verb."""
    add_samples(parser, f"a .tflite or .onnx file, a .mla file from mla compile, {REFERENCE}")
    parser.add_argument(
        "--device", choices=("rtl", "golden"), default="rtl", help="device to run on (default: %(default)s)"
    )
    parser.add_argument("--out", metavar="FILE", type=Path, help="write the outputs to an .npz file")
    parser.add_argument(
        "--show",
        action="store_true",
        help="print output values, and the top classes if an output is a vector of class scores",
    )
    parser.add_argument(
        "--waves",
        metavar="FILE",
        type=Path,
        help="record all signals of the chip in an FST file, for GTKWave or Surfer; builds a separate simulator once",
    )
    add_reset(parser)
    add_clock(parser)
    add_performance_targets(parser)
    add_compile(parser, fuse=True)
    add_dispatch(parser)
    add_db(parser)
    add_target(parser)
    add_memory(parser)
    add_seed(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Compile the model, run it and print the report."""
    import numpy as np

    from compiler.cache.content_store import ContentStore
    from compiler.cli.inputs import read_samples
    from compiler.cli.run_report import show_outputs, table, top_classes
    from compiler.options import target_lines
    from compiler.runtime.device import open_device
    from compiler.runtime.run_report import back_to_back, document, run_samples
    from hw.errors import InputError

    check_files(args, "out", "waves")
    warn_about_clock(args)
    goals = performance_targets(args)
    if args.waves and args.device == "golden":
        raise InputError("--waves: the golden model has no signals; use --device rtl")
    network = network_of(args)
    for each in network.host:
        log(f"runs on the host: {each.node} ({each.op}): {each.reason}")
    check_reset(args, network)
    samples = read_samples(network.sample, args.input, args.limit, args.seed, network, args.input_scale)
    report_provenance(args, network)
    rate = args.dram_bytes_per_cycle or network.config.beat_bytes
    in_flight = back_to_back(network, len(samples))
    with (
        named(args.model),
        open_device(
            network,
            args.device,
            in_flight,
            args.dram_latency,
            rate,
            log,
            waves=args.waves,
            throttle=args.throttle,
        ) as device,
    ):
        proofs = None if args.no_cache else ContentStore()
        result = run_samples(device, network, samples, log, proofs=proofs, rate=rate, reset=args.reset_state)
    whole = head(args, args.device, rate) | document(network, result, rate, args.clock)
    whole["performance_targets"] = judged_targets(goals, whole)
    if args.device == "rtl":
        keep_executions(args, network, result, rate)
    if args.out:
        buffer = io.BytesIO()
        np.savez(buffer, **result.outputs)  # pyright: ignore[reportArgumentType]: names are the user's
        write_output(args.out, buffer.getvalue())
    text = "\n".join([table(whole), *target_lines(whole["performance_targets"])])
    if args.show:
        for tensor in network.outputs:
            whole["outputs"][tensor.name]["top"] = top_classes(tensor, result.outputs[tensor.name])
        text += "\n" + "\n".join(show_outputs(network.outputs, result.outputs))
    report(whole, text, args.json)
    return targets_status(whole["performance_targets"])


def keep_executions(
    args: argparse.Namespace, network: "CompiledNetwork", result: "Run", rate: float, limit: int = 0
) -> "dict[str, list[Execution]]":
    """Store the executions of the layers in the database of the verb's options, in one transaction.

    A database that cannot be written causes a warning. Return the last earlier executions of the layers, at most
    `limit` each, by digest.
    """
    from compiler.options import DEFAULT_DRAM, DramTiming
    from compiler.profile.measurement import HardwareProfile
    from compiler.tuning_db.connection import SHORT_TIMEOUT_S
    from compiler.tuning_db.database import TuningDatabase
    from compiler.tuning_db.session import executions_of
    from hw.errors import InputError, WorkError

    where = used_database(args)
    latency = DEFAULT_DRAM.latency if args.dram_latency is None else args.dram_latency
    conditions = HardwareProfile(network.config, DramTiming(latency, rate, args.throttle))
    if where is None or not (found := executions_of(network, result, conditions)):
        return {}
    try:
        with TuningDatabase(where, timeout_s=SHORT_TIMEOUT_S) as database:
            shapes = dict.fromkeys(each.key.subgraph for each in found) if limit else ()
            earlier = {shape: database.history(shape, limit) for shape in shapes}
            database.add_execution(*found)
            return earlier
    except (InputError, WorkError) as error:
        warn(f"the executions of the layers are not kept: {error}")
        return {}


def judged_targets(goals: "PerformanceTargets", whole: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the JSON field `performance_targets` for the report of a run."""
    energy = None if whole["energy_uj"] is None else whole["energy_uj"] / whole["samples"]
    return goals.judged(whole["cycles_per_sample"], whole["steady_cycles_per_sample"], energy)


def warn_about_clock(args: argparse.Namespace) -> None:
    """Warn if `--clock` is given for the golden model, which has no clock."""
    if args.device == "golden" and args.clock is not None:
        warn("the golden model has no clock: --clock is ignored")


def network_of(args: argparse.Namespace) -> "CompiledNetwork":
    """Read a compiled network, or compile a model; warn if its quantization is poor."""
    from compiler.frontends.model import check_suffix
    from compiler.frontends.torch_module import is_reference
    from compiler.lowering.partition import check_strict
    from compiler.runtime.package_writer import read_package
    from hw.errors import InputError

    if args.model.suffix.lower() != PACKAGE_SUFFIX:
        if not is_reference(args.model):
            check_suffix(args.model, compiled=True)
        return compile_model(args)
    if args.calibrate:
        raise InputError(f"{args.model} is already compiled: --calibrate applies to float models")
    if args.keep_float:
        raise InputError(f"{args.model} is already compiled: --keep-float applies to float models")
    if args.int16:
        raise InputError(f"{args.model} is already compiled: --int16 applies to float models")
    if args.accuracy_budget:
        raise InputError(f"{args.model} is already compiled: --accuracy-budget applies to models")
    if args.size:
        raise InputError(
            f"{args.model} is already compiled: --size applies to models with dynamic dimensions"
        )
    for name in ("enable", "disable", "host", "keep_on_accelerator", "unroll"):
        if vars(args)[name]:
            option = name.replace("_", "-")
            raise InputError(f"{args.model} is already compiled: --{option} applies to models")
    if args.bind:
        raise InputError(f"{args.model} is already compiled: --bind applies to models")
    if vars(args).get("skip") is not None:
        raise InputError(f"{args.model} is already compiled: --skip applies to models")
    if vars(args).get("reuse"):
        raise InputError(f"{args.model} is already compiled: --reuse applies to models")
    for name in ("sp_limit", "acc_limit", "dram_limit"):
        if vars(args)[name] is not None:
            option = name.replace("_", "-")
            raise InputError(f"{args.model} is already compiled: --{option} applies to models")
    network = read_package(args.model)
    check_machine(args.model, network, args.target)
    if args.rounding not in (None, network.rounding):
        raise InputError(f"{args.model} was compiled with --rounding {network.rounding}, not {args.rounding}")
    if args.strict:
        check_strict(network.name, network.host)
    if args.batch not in (None, network.batch):
        raise InputError(
            f"{args.model} was compiled for batch size {network.batch}, not for --batch {args.batch}"
        )
    given = vars(args).get("batches", ())
    if given and given != network.batches:
        sizes, wanted = (",".join(map(str, each)) for each in (network.batches, given))
        raise InputError(f"{args.model} was compiled for batch sizes {sizes}, not for --batches {wanted}")
    if network.quantization is not None:
        from compiler.quantize.report import log_warnings

        log_warnings(network.name, network.quantization)
    return network


def check_machine(path: Path, network: "CompiledNetwork", target: str) -> None:
    """Raise InputError if a network was compiled for a configuration that differs from the target."""
    from hw.config import load_target
    from hw.errors import InputError

    if network.config != load_target(target):
        raise InputError(f"{path} was compiled for another configuration than --target {target}")


@contextmanager
def named(model: Path) -> Iterator[None]:
    """Prefix the messages of InputErrors with the file name if the model is a compiled file."""
    from hw.errors import InputError

    try:
        yield
    except InputError as error:
        if model.suffix.lower() != PACKAGE_SUFFIX:
            raise
        raise InputError(f"{model}: {error}") from None


def head(args: argparse.Namespace, device: str, bytes_per_cycle: float) -> dict[str, Any]:
    """Return the report fields for the arguments of the verb: model, target, device and DRAM timing."""
    return {
        "model": str(args.model),
        "target": Path(args.target).stem,
        "device": device,
        "dram": {
            "latency": args.dram_latency,
            "bytes_per_cycle": bytes_per_cycle,
            "throttle": args.throttle,
        },
    }
