"""Compile a model."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.cache.content_store import ContentStore
from compiler.cache.model_source import ModelSource
from compiler.ir.graph import Graph
from compiler.options import NONE, ROUNDINGS, USUAL, CompileOptions, DramTiming, MemoryLimits
from compiler.runtime.compiled import CompiledNetwork, Origin
from compiler.runtime.dispatch.batch_sizes import check_sizes
from compiler.schedule.schedule import Schedule
from compiler.util import arguments
from hw.config import MlaConfig, load_target
from hw.errors import InputError, shown

if TYPE_CHECKING:
    from compiler.quantize.samples import Calibration
    from compiler.runtime.network_cache import NetworkCache
    from compiler.trace import CompilationTrace

_log = logging.getLogger(__name__)


def compile(
    model: Path | str | Graph | ModelSource | Any,
    target: str | MlaConfig = "n16",
    *,
    rounding: str | None = None,
    schedule: Schedule | None = None,
    strict: bool = False,
    calibration: "Calibration | None" = None,
    example: Any = None,
    dynamic_shapes: Any = None,
    sizes: Mapping[str, int] | None = None,
    bind: Mapping[str, Any] | None = None,
    seed: int = 0,
    offset: int = 0,
    batch: int = 1,
    batches: Sequence[int] = (),
    skip: str | None = None,
    keep_float: Sequence[str] = (),
    dram: DramTiming = USUAL,
    limits: MemoryLimits = NONE,
    cache: bool | None = None,
    record: "CompilationTrace | None" = None,
) -> CompiledNetwork:
    """Compile a model for a machine, or find it compiled already.

    Parameters
    ----------
    model : path, Graph, Source, torch.nn.Module or torch.export.ExportedProgram
        A model's file, or its graph; `module:function`, which names a function of the user's own that returns a PyTorch
        module; or such a module itself.
    target : str or MlaConfig
        The machine.
    rounding : str or None
        "reference": LiteRT's reference kernels; "xnnpack": its default ones; "onnxruntime". Left out: onnxruntime for
        ONNX files and PyTorch, else the reference kernels.
    schedule : Schedule or None
        How to carry it out; found by estimates if left out.
    strict : bool
        Refuse a model of which an operator must run on the host; conversions between float and integers at its edges
        are none (docs/compiler.md).
    calibration : Calibration or None
        Samples of the inputs of a float model, which is quantized with them: a dict of arrays whose first axis counts
        samples, or a list of samples. Without any, random samples are used and the accuracy is meaningless.
    example : tensor, array, tuple of them, or dict of them by name
        Inputs with which a PyTorch module is exported: their shapes are those of the network.
    dynamic_shapes : as torch.export.export has it
        Dimensions that its export leaves open.
    sizes : dict
        Sizes of dimensions that an ONNX file only names, or that are open; a first one that is not named is 1.
    bind : dict
        Values of inputs that become constants of the network, by name: one number for all elements, or an array of the
        input's shape; of a quantized input, integers as they are stored.
    seed : int
        Of these random numbers.
    offset : int
        Bytes at the start of the model's memory (of each stage's) that belong to other code: two can then share it.
    batch : int
        Samples at a time, one behind the other along the first axis of inputs and outputs: weights are loaded once for
        all of them.
    batches : sequence of int
        Sizes of batches, ascending, in place of `batch`: there are programs for each, and the machine takes those for
        as few samples as will do (docs/dispatch.md).
    skip : str or None
        A tensor, or the node that makes it, by its name: where all of it is zero, what follows is not carried out, and
        its results, which are constants then, are only written (docs/dispatch.md).
    keep_float : sequence of str
        Nodes or operators of a float model, by name, that are not quantized: they run in float32 on the host.
    dram : Dram
        The memory to schedule for. Programs run with any, and outputs are the same.
    limits : Limits
        How much of the machine's memories may be used.
    cache : bool or None
        Look the network up among those that were compiled before, and keep it; None: those of files only. One that
        comes from there has no `layers`.
    record : Record or None
        Takes what every stage made; nothing is looked up then.

    Raises
    ------
    InputError
        The model cannot be read or compiled, the schedule is not legal for it, or an argument is not of its type.
    """
    started = time.monotonic()
    sizes, calibration = arguments.sizes(sizes), arguments.calibration(calibration)
    bind = None if bind is None else arguments.arrays("bind", bind)
    seed, offset = (arguments.integer(*each, 0) for each in (("seed", seed), ("offset", offset)))
    batch = arguments.integer("batch", batch, 1)
    batches = arguments.integers("batches", batches, 1)
    keep_float = arguments.texts("keep_float", keep_float)
    _check_types(schedule, dram, strict, cache, record)
    arguments.of_type("limits", limits, MemoryLimits, "a Limits")
    config = load_target(target) if isinstance(target, str) else target
    arguments.of_type("target", config, MlaConfig, "the name of a machine, a TOML file, or an MlaConfig")
    _check_dispatch(config, batch, batches, schedule, skip)
    source = (
        model
        if isinstance(model, ModelSource)
        else ModelSource(model, sizes=sizes, example=example, dynamic_shapes=dynamic_shapes, bind=bind)
    )
    named = isinstance(source.model, (str, Path)) if cache is None else cache
    if named and record is None:
        source.store = source.store or ContentStore()
    options = CompileOptions(
        rounding=_rounding(source, rounding),
        schedule=schedule,
        strict=strict,
        calibration=calibration,
        seed=seed,
        offset=offset,
        batch=batch,
        batches=batches,
        skip=skip,
        keep_float=keep_float,
        dram=dram,
        limits=limits,
    )
    place = (
        _place(source.store, source, config, options) if named and record is None and source.store else None
    )
    network = None if place is None else place.get()
    origin = Origin.CACHE
    if network is None:
        from compiler import pipeline  # takes long to load

        network, origin = pipeline.build(source.graph, config, options, record), Origin.COMPILED
        if place is not None:
            place.put(network)
    _say(network, seed)
    return replace(network, origin=origin, compile_seconds=time.monotonic() - started)


def _check_dispatch(
    config: MlaConfig, batch: int, batches: tuple[int, ...], schedule: Schedule | None, skip: Any
) -> None:
    """Refuse what the machine cannot choose among, and what does not go with that."""
    arguments.of_type("skip", skip, (str, type(None)), "the name of a tensor, or None")
    if skip is not None and (batches or schedule is not None):
        raise InputError(f"skip does not go with {'batches' if batches else 'a schedule'}")
    if batches and batch != 1:
        raise InputError(f"batches are in place of batch, which must be left out, not {batch}")
    if batches and schedule is not None:
        raise InputError("a schedule is for one size of batches, not for batches")
    check_sizes(config, batches)


def _check_types(schedule: Any, dram: Any, strict: Any, cache: Any, record: Any) -> None:
    """Refuse arguments that are not of the types that `compile` says."""
    from compiler.trace import CompilationTrace

    arguments.of_type("schedule", schedule, (Schedule, type(None)), "a Schedule or None")
    arguments.of_type("dram", dram, DramTiming, "a Dram")
    latency, rate = dram.latency, dram.bytes_per_cycle
    arguments.integer("latency of dram", latency, 1)
    arguments.of_type("bytes_per_cycle of dram", rate, (int, float, type(None)), "a number or None")
    if rate is not None and not rate > 0:
        raise InputError(f"bytes_per_cycle of dram must be more than 0, not {shown(rate)}")
    arguments.of_type("strict", strict, bool, "True or False")
    arguments.of_type("cache", cache, (bool, type(None)), "True, False or None")
    arguments.of_type("record", record, (CompilationTrace, type(None)), "a Record or None")


def _rounding(source: ModelSource, rounding: str | None) -> str:
    """Whose rounding is wanted."""
    if rounding is None:
        return source.rounding
    if rounding not in ROUNDINGS:
        raise InputError(f"rounding must be {' or '.join(ROUNDINGS)}, not {shown(rounding)}")
    return rounding


def _place(
    store: ContentStore, source: ModelSource, config: MlaConfig, options: CompileOptions
) -> "NetworkCache":
    """Where the network would lie in the cache."""
    from compiler.runtime.network_cache import NetworkCache

    # A seed changes nothing but samples that are made up.
    made_up = source.floating and options.calibration is None
    return NetworkCache(store, source, config, options if made_up else replace(options, seed=0))


def _say(network: CompiledNetwork, seed: int) -> None:
    """What a user must know of a float model that has been quantized."""
    report = network.quantization
    if report is None:
        return
    if report.random and report.tensors:
        _log.warning(
            "%s is quantized with %d random samples (seed %d): accuracy is meaningless, pass calibration "
            "data (--calibrate)",
            network.name,
            report.samples,
            seed,
        )
    _log.info("%s", report)
