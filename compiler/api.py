"""Compilation of models, the `compile` function, and pruning of their weights, the `prune` function."""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache as memoized
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.cache.content_store import ContentStore
from compiler.cache.digest import name, version
from compiler.cache.model_source import ModelSource
from compiler.ir.graph import Graph, Node
from compiler.options import (
    DEFAULT_DRAM,
    DEFAULT_HOST_COSTS,
    REGIONS,
    ROUNDINGS,
    UNLIMITED,
    AccuracyBudget,
    CompileOptions,
    DramTiming,
    HostCosts,
    LengthRange,
    MemoryLimits,
    unroll_factors,
)
from compiler.profile.measurement import HardwareProfile
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.size_variants import check_sizes
from compiler.runtime.stages import Origin, ProgramSource
from compiler.schedule.schedule import Schedule
from compiler.util import checks
from cosim.checks import throttle as checked_throttle
from hw.config import DEFAULT_TARGET, MlaConfig, load_target
from hw.errors import InputError, MlaError, shown

if TYPE_CHECKING:
    from compiler.pipeline import CompilationTrace, ModelCompiler
    from compiler.quantize.ranges import Calibration
    from compiler.runtime.package_writer import NetworkCache
    from compiler.schedule.program_override import ProgramTemplate
    from compiler.tuning.network_cost_model import NetworkCostModel
    from compiler.tuning_db.database import TuningDatabase
    from compiler.tuning_db.known_schedules import KnownSchedule, LayerPredictions

_log = logging.getLogger(__name__)

#: Kind and contents of the records of proofs in the cache.
_PROOF, _PASSED = "network-proof", b"passed"
#: Kinds of the predictions of cycles, and of schedules with program texts made from templates, in the cache.
_PREDICTION, _TEXTS = "prediction", "macro-texts"
#: Maximum number of layers that a message lists.
_LISTED = 4


def compile(
    model: Path | str | Graph | ModelSource | Any,
    target: str | MlaConfig = DEFAULT_TARGET,
    *,
    rounding: str | None = None,
    schedule: Schedule | Mapping[int, Schedule] | None = None,
    strict: bool = False,
    calibration: "Calibration | None" = None,
    example: Any = None,
    dynamic_shapes: Any = None,
    sizes: Mapping[str, int | Sequence[int]] | None = None,
    bind: Mapping[str, Any] | None = None,
    seed: int = 0,
    offset: int = 0,
    batch: int = 1,
    batches: Sequence[int] = (),
    skip: str | None = None,
    reuse: bool | str = False,
    keep_float: Sequence[str] = (),
    int16: Sequence[str] = (),
    accuracy_budget: AccuracyBudget | None = None,
    dram: DramTiming = DEFAULT_DRAM,
    limits: MemoryLimits = UNLIMITED,
    fuse: bool = False,
    enable: Sequence[str] = (),
    disable: Sequence[str] = (),
    host: Sequence[str] = (),
    keep_on_accelerator: Sequence[str] = (),
    host_costs: HostCosts = DEFAULT_HOST_COSTS,
    unroll: int | Mapping[str, int] | None = None,
    cache: bool | None = None,
    database: "TuningDatabase | str | Path | bool" = True,
    record: "CompilationTrace | None" = None,
) -> CompiledNetwork:
    """Compile a model for a target, or read the compiled network from the cache.

    Parameters
    ----------
    model : path, Graph, ModelSource, torch.nn.Module or torch.export.ExportedProgram
        A .tflite or .onnx file, a graph, `module:function` for a Python function that returns a PyTorch module, or a
        PyTorch module.
    target : str or MlaConfig
        Hardware configuration to compile for: a name such as "n16", a TOML file, or an MlaConfig.
    rounding : str or None
        Kernels whose rounding to reproduce: "reference" (LiteRT's reference kernels), "xnnpack" (LiteRT's default
        kernels) or "onnxruntime". None: onnxruntime for ONNX files and PyTorch modules, otherwise the reference
        kernels.
    schedule : Schedule, dict or None
        Schedule to use; with `batches`, a dict with the schedules of some of the sizes. None: the compiler chooses one
        by estimated cycles, as it does for the other sizes.
    strict : bool
        True to reject a model with operators that must run on the host, except for conversions between float and
        integers at the model boundary (docs/compiler.md).
    calibration : Calibration or None
        Input samples for the quantization of a float model: a dict of arrays whose first axis indexes samples, or a
        list of samples. None: random samples, which suffice to measure cycles but give meaningless accuracy.
    example : tensor, array, tuple of them, or dict of them by name
        Example inputs for the export of a PyTorch module; they determine the shapes of the network.
    dynamic_shapes : as in torch.export.export
        Dimensions that remain dynamic in the export.
    sizes : dict
        Sizes of symbolic or dynamic dimensions by name; the default for the first dimension of an input is 1. One size
        may be a sequence of ascending lengths, such as range(8, 129): the network has programs for all of them, and
        the hardware selects the program for the length of each input (docs/dispatch.md).
    bind : dict
        Values, by name, of inputs that become constants: a scalar for all elements, or an array of the input's shape.
        For a quantized input, the values are the stored integers.
    seed : int
        Seed of the random calibration samples.
    offset : int
        Bytes reserved at the start of each stage's DRAM for another network, so that two networks can share the DRAM.
    batch : int
        Batch size: samples stacked along the first axis of inputs and outputs; weights are loaded once per batch.
    batches : sequence of int
        Batch sizes in ascending order, instead of `batch`: the network has programs for each size, and the hardware
        selects the smallest sufficient size at run time (docs/dispatch.md).
    skip : str or None
        Name of a tensor, or of the node that computes it. If the tensor is all zeros at run time, the computation that
        depends on it is skipped and its results, which are constant in that case, are written (docs/dispatch.md).
    reuse : bool or str
        True to write the previous results again if the inputs equal those of the previous sample, which the hardware
        finds out by comparing them byte by byte; "regions" to also compute only what depends on changed pixels if a
        part of an image has changed (docs/dispatch.md).
    keep_float : sequence of str
        Names of nodes or operators of a float model that are not quantized and run in float32 on the host.
    int16 : sequence of str
        Names of nodes or operators of a float model whose activations are quantized to int16 instead of int8; "all" for
        all nodes, "auto" for as few results as meet `accuracy_budget`, or else 30 dB, relative to the float model
        (docs/quantization.md).
    accuracy_budget : AccuracyBudget or None
        Loss of accuracy that weights with 2 to 7 bits may cause, on the calibration samples; the model may also be a
        quantized one. With a share of requests, two networks are compiled, and the exact one runs if the one with few
        bits is not certain of the label (docs/quantization.md). None: weights have 8 bits, or those of the model.
    dram : DramTiming
        Latency and bandwidth of the DRAM to schedule for. Programs run with any DRAM and give the same outputs.
    limits : MemoryLimits
        Maximum bytes of scratchpad, accumulator and DRAM that the network may use.
    fuse : bool
        True to let the fusion engine improve the chosen schedule to a fixed point (docs/tuning.md): it combines
        fusions, places of tensors and tilings of adjacent layers whose predicted gain exceeds its expected error. This
        takes seconds. Ignored if `schedule`, `batches`, `skip`, `reuse`, several lengths or `record` is given.
    enable, disable : sequences of str
        Graph passes to run that are off by default, and passes not to run (docs/passes.md).
    host, keep_on_accelerator : sequences of str
        Names of nodes or operators that run on the host although the accelerator supports them, and of those that the
        pass `place_on_host` leaves on the accelerator.
    host_costs : HostCosts
        Time of operators on the host, and clock of the accelerator, for the passes `place_on_host` and `unroll_loops`.
    unroll : int or mapping of str to int or None
        Number of steps that each iteration of a loop computes, for all loops with a known number of iterations or by
        name of the node; 1 for a loop as in the model, 0 for no loop. None: the pass `unroll_loops` chooses it.
    cache : bool or None
        True to use the cache of compiled networks, False to bypass it; None: True if the model is a file. A network
        from the cache has no `layers`.
    database : TuningDatabase, str, Path or bool
        Database of earlier searches, or its URL or file. If the network, or layers that it shares with other networks,
        were tuned for this target and DRAM timing, the best known schedules are used (docs/tuning_db.md). True: the
        user's database, which `mla tune` fills; False: no database. Ignored if `schedule`, `batches`, `skip` or
        `record` is given.
    record : CompilationTrace or None
        Trace that receives the results of every stage of the compiler; disables the cache.

    Returns
    -------
    CompiledNetwork
        The programs, their memory layout and the schedule. Call the network with arrays to run it on the golden model.

    Raises
    ------
    InputError
        The model cannot be read or compiled, the schedule is not legal for it, or an argument has the wrong type.

    Examples
    --------
    >>> network = compiler.compile("network.tflite", target="n4")
    >>> outputs = network(image)  # a dict of arrays by the names of the outputs
    """
    started = time.monotonic()
    calibration = checks.calibration(calibration)
    bind = None if bind is None else checks.arrays("bind", bind)
    seed, offset = (checks.integer(*each, 0) for each in (("seed", seed), ("offset", offset)))
    batch = checks.integer("batch", batch, 1)
    batches = checks.integers("batches", batches, 1)
    keep_float, int16 = checks.texts("keep_float", keep_float), checks.texts("int16", int16)
    _check_types(schedule, dram, strict, cache, record)
    _check_database(database)
    checks.of_type("limits", limits, MemoryLimits, "a MemoryLimits")
    checks.of_type("host_costs", host_costs, HostCosts, "a HostCosts")
    config = load_target(target) if isinstance(target, str) else target
    checks.of_type("target", config, MlaConfig, "the name of a target, a TOML file, or an MlaConfig")
    budget = checks.of_type(
        "accuracy_budget", accuracy_budget, (AccuracyBudget, type(None)), "an AccuracyBudget"
    )
    cascades = budget is not None and budget.share is not None
    _check_dispatch(config, batch, batches, schedule, skip, reuse, cascades=cascades)
    source = (
        model
        if isinstance(model, ModelSource)
        else ModelSource(model, sizes=sizes, example=example, dynamic_shapes=dynamic_shapes, bind=bind)
    )
    if source.lengths is not None:
        other = "batch" if batch > 1 else "batches" if batches else "skip" if skip is not None else ""
        other = other or ("reuse" if reuse else "a schedule" if schedule else "")
        other = other or ("accuracy_budget" if accuracy_budget else "int16" if int16 else "")
        if other:
            raise InputError(
                f"sizes: several lengths of {source.lengths[0]!r} cannot be combined with {other}"
            )
    dispatches = bool(batches or reuse or skip is not None or cascades or source.lengths is not None)
    named = isinstance(source.model, (str, Path)) if cache is None else cache
    if named and record is None:
        source.store = source.store or ContentStore()
    options = CompileOptions(
        rounding=_rounding(source, rounding),
        schedule=schedule if isinstance(schedule, Schedule) else None,
        batch_schedules=tuple(sorted(schedule.items(), key=itemgetter(0)))
        if isinstance(schedule, Mapping)
        else (),
        strict=strict,
        calibration=calibration,
        seed=seed,
        offset=offset,
        batch=batch,
        batches=batches,
        skip=skip,
        reuse=reuse,
        keep_float=keep_float,
        int16=int16,
        accuracy_budget=budget,
        dram=dram,
        limits=limits,
        fuse=fuse and schedule is None and not dispatches and record is None,
        enable=checks.texts("enable", enable),
        disable=checks.texts("disable", disable),
        host=checks.texts("host", host),
        keep_on_accelerator=checks.texts("keep_on_accelerator", keep_on_accelerator),
        host_costs=host_costs,
        unroll=unroll_factors(unroll),
        lengths=None if source.lengths is None else LengthRange(*source.lengths),
    )
    store = source.store if named and record is None else None
    network = _build(source, config, options, store, record)
    if network.quantization is not None:
        from compiler.quantize.report import log_warnings

        log_warnings(network.name, network.quantization, seed)
        _log.info("%s", network.quantization)
    if schedule is None and record is None and source.lengths is None and not cascades:
        known = _best_known_sizes if batches else _best_known
        network = known(network, source, config, options, store, database)
    return replace(network, compile_seconds=time.monotonic() - started)


def _build(
    source: ModelSource,
    config: MlaConfig,
    options: CompileOptions,
    store: ContentStore | None,
    record: "CompilationTrace | None" = None,
) -> CompiledNetwork:
    """Compile a model, or read the compiled network from `store`."""
    entry = None if store is None else _cache_entry(store, source, config, options)
    network = None if entry is None else entry.get()
    if network is not None:
        return replace(network, origin=Origin.CACHE)
    from compiler import pipeline  # takes long to load

    sized = None if options.lengths is None else source.at
    network = pipeline.build(source.graph, config, options, record, sized)
    if options.fuse and options.schedule is None:
        network = _fused(network, source.graph, config, options)
    if entry is not None:
        entry.put(network)
    return replace(network, origin=Origin.COMPILED)


def _fused(
    static: CompiledNetwork, graph: Graph, config: MlaConfig, options: CompileOptions
) -> CompiledNetwork:
    """Return the network under the fixed point of the fusion engine; `static` if it is the same or does not compile."""
    from compiler.cost.learned_model import find_model
    from compiler.pipeline import ModelCompiler
    from compiler.tuning.fusion_engine import CONFIDENCE, FusionEngine

    if not static.infos:
        return static
    conditions = HardwareProfile(config, options.dram)
    prepared = ModelCompiler(graph, config, options)
    engine = FusionEngine(prepared, conditions, find_model(conditions))
    schedule = engine.fixed_point(static.schedule, CONFIDENCE)
    try:
        return static if schedule == static.schedule else prepared.network(schedule)
    except InputError as error:
        _log.info("the fixed point of the fusion engine is not used: %s", error)
        return static


def _best_known(
    static: CompiledNetwork,
    source: ModelSource,
    config: MlaConfig,
    options: CompileOptions,
    store: ContentStore | None,
    database: "TuningDatabase | str | Path | bool",
    *,
    texts: bool = True,
) -> CompiledNetwork:
    """Return the network with the best known schedule that compiles and is safe; `static` if there is none.

    Programs with guards are made of the schedule alone: they have no program texts.

    Parameters
    ----------
    static : CompiledNetwork
        Network with the schedule that the compiler chose by estimates.
    source, config, options, store
        Model, machine and options of the network, and the cache of compiled networks, if any.
    database : TuningDatabase, str, Path or bool
        As for `compile`.
    texts : bool
        False to use no program texts.
    """
    if database is False or not static.infos or static.graph is None:
        return static
    guarded = options.skip is not None or bool(options.reuse)
    from compiler.tuning_db.connection import default_database  # takes long to load
    from compiler.tuning_db.known_schedules import known_schedules

    given = default_database() if database is True else database
    if given is None:
        return static
    try:
        known = known_schedules(given)
        if known is None:
            return static
        conditions = HardwareProfile(config, options.dram)
        found = known.find(
            static, conditions, options.limits, _predictor(static, source, options, conditions, store)
        )
    except MlaError as error:
        if database is not True and isinstance(error, InputError):
            raise
        _log.warning("the database of measurements is not used: %s", error)
        return static
    accepted = _Acceptance(static, source, conditions, options, store)
    for candidate in found:
        each: KnownSchedule | None = candidate if texts and not guarded else candidate.without_texts
        if each.schedule == static.schedule and not each.templates:
            continue
        while each is not None:
            network = None
            try:
                schedule, applied = accepted.schedule(each.schedule, each.templates)
                network = _build(source, config, replace(options, schedule=schedule), store)
                _check_safe(network, store)
                accepted.check(schedule, network)
            except InputError as error:
                _log.info("a schedule from the database is not used: %s", error)
                each = (
                    (None if guarded else each.fitting(static.schedule, accepted.compiles))
                    if network is None
                    else _without_refused(each, network, str(error))
                )
            else:
                sources = each.sources_with(applied)
                if guarded:  # schedules that differ only in what is the same in all programs with guards
                    own, layers = static.schedule.layers, network.schedule.layers
                    sources = tuple(
                        ProgramSource(each.layer, each.subgraph)
                        if layers[each.layer] == own.get(each.layer)
                        else each
                        for each in sources
                    )
                return replace(network, sources=sources)
    return static


def _best_known_sizes(
    static: CompiledNetwork,
    source: ModelSource,
    config: MlaConfig,
    options: CompileOptions,
    store: ContentStore | None,
    database: "TuningDatabase | str | Path | bool",
) -> CompiledNetwork:
    """Return a network for several batch sizes in which each has its best known schedule.

    The result is `static` if no schedule is known, or if the programs do not fit the instruction store together.
    Parameters are those of `_best_known`.
    """
    from compiler.tuning_db.connection import default_database  # takes long to load

    given = default_database() if database is True else database or None
    if given is None or (isinstance(given, Path) and not given.exists()):
        return static
    found: dict[int, CompiledNetwork] = {}
    for size in options.batches:
        alone = replace(options, batches=(), batch=size)
        network = _build(source, config, alone, store)
        best = _best_known(network, source, config, alone, store, database, texts=False)
        if best is not network:
            found[size] = best
    if not found:
        return static
    schedules = tuple((size, network.schedule) for size, network in found.items())
    try:
        made = _build(source, config, replace(options, batch_schedules=schedules), store)
        _check_safe(made, store)
    except InputError as error:
        _log.info("schedules from the database are not used: %s", error)
        return static
    largest = found.get(options.batches[-1])
    return replace(made, sources=largest.sources if largest else ())


def _without_refused(known: "KnownSchedule", network: CompiledNetwork, reason: str) -> "KnownSchedule | None":
    """Return a schedule without the templates in the programs that a reason names; None if no others remain."""
    layers = {info.name for info in network.infos if f"program {info.program!r}" in reason}
    left = {name: template for name, template in known.templates.items() if name not in layers}
    if not left or len(left) == len(known.templates):
        return None
    return replace(known, templates=left, sources=known.sources_with(left))


class _Acceptance:
    """Application of templates of programs, and acceptance of program texts by proof or test.

    The model is prepared at first use. Results are kept in `store`, so that each combination is proved once.
    """

    def __init__(
        self,
        static: CompiledNetwork,
        source: ModelSource,
        conditions: HardwareProfile,
        options: CompileOptions,
        store: ContentStore | None,
    ):
        self.source, self.conditions, self.options, self.store = source, conditions, options, store
        #: Digest of the model with its weights, and of the conditions.
        self._model = name(version(), static.digest, conditions.key)

    @cached_property
    def prepared(self) -> "ModelCompiler":
        """Compiler of the model, with states as inputs and outputs."""
        from compiler.pipeline import ModelCompiler

        prepared = ModelCompiler(self.source.graph, self.conditions.config, self.options)
        prepared.open_states()
        return prepared

    def compiles(self, schedule: Schedule) -> bool:
        """Return True if a schedule compiles."""
        options = replace(self.options, schedule=schedule)
        try:
            _build(self.source, self.conditions.config, options, self.store)
        except InputError:
            return False
        return True

    def schedule(
        self, schedule: Schedule, templates: "Mapping[str, ProgramTemplate]"
    ) -> tuple[Schedule, frozenset[str]]:
        """Return a schedule with the program texts that templates give, and the layers whose templates fit.

        Raises
        ------
        InputError
            No template fits the network's programs.
        """
        if not templates:
            return schedule, frozenset()
        from compiler.schedule.program_override import template_values
        from compiler.tuning.edits.edit import EditError
        from compiler.tuning.edits.editable_programs import with_templates

        parts = [(layer, template_values(template)) for layer, template in templates.items()]
        key = name(self._model, schedule, parts)
        known = None if self.store is None else self.store.get(_TEXTS, key)
        if known is not None:
            fields = json.loads(bytes(known))
            return Schedule.from_json(fields["schedule"]), frozenset(fields["layers"])
        try:
            made, applied = with_templates(self.prepared, schedule, templates)
        except EditError as error:
            raise InputError(str(error)) from None
        if self.store is not None:
            fields = {"schedule": made.to_json(), "layers": sorted(applied)}
            self.store.put(_TEXTS, key, json.dumps(fields).encode())
        return made, applied

    def check(self, schedule: Schedule, network: CompiledNetwork) -> None:
        """Accept the program texts of a network's schedule, which are proved or tested for its weights and addresses.

        Raises
        ------
        InputError
            They are refused.
        """
        if not schedule.programs:
            return
        from compiler.tuning.measure.equivalence import EquivalenceChecker

        key = name(self._model, "texts", network.digest)
        if self.store is not None and self.store.get(_PROOF, key) == _PASSED:
            return
        verdict = EquivalenceChecker(self.prepared).check(self.prepared.network(schedule))
        if verdict.difference is not None:
            raise InputError(verdict.difference)
        if self.store is not None:
            self.store.put(_PROOF, key, _PASSED)


def _predictor(
    static: CompiledNetwork,
    source: ModelSource,
    options: CompileOptions,
    conditions: HardwareProfile,
    store: ContentStore | None,
) -> "Callable[[Schedule], LayerPredictions]":
    """Return a function that predicts the cycles of a model's layers under a schedule.

    It prepares the model at first use, and keeps predictions in `store`.
    """
    from compiler.cost.learned_model import find_model, model_path

    @memoized
    def model() -> "NetworkCostModel":
        from compiler.pipeline import ModelCompiler
        from compiler.tuning.network_cost_model import NetworkCostModel

        prepared = ModelCompiler(source.graph, conditions.config, options)
        return NetworkCostModel(prepared, conditions, find_model(conditions))

    file = model_path(conditions)
    changed = file.stat().st_mtime_ns if file.exists() else 0

    def predict(schedule: Schedule) -> "LayerPredictions":
        key = name(version(), static.digest, conditions.key, changed, schedule)
        known = None if store is None else store.get(_PREDICTION, key)
        if known is not None:
            return {layer: (cycles, error) for layer, (cycles, error) in json.loads(bytes(known)).items()}
        found = model().predict_layers(schedule)
        if store is not None:
            store.put(_PREDICTION, key, json.dumps(found).encode())
        return found

    return predict


def _check_safe(network: CompiledNetwork, store: ContentStore | None) -> None:
    """Prove the programs of a network safe, unless `store` records an earlier proof.

    Raises
    ------
    ValidationError
        The programs are not safe.
    """
    from compiler.runtime.validation import validate_network

    key = name(version(), "network", network.digest, network.config)
    if store is not None and store.get(_PROOF, key) == _PASSED:
        return
    validate_network(network)
    if store is not None:
        store.put(_PROOF, key, _PASSED)


def _check_dispatch(
    config: MlaConfig,
    batch: int,
    batches: tuple[int, ...],
    schedule: Schedule | Mapping[int, Schedule] | None,
    skip: Any,
    reuse: Any,
    *,
    cascades: bool,
) -> None:
    """Raise InputError if an option of dynamic dispatch is invalid or conflicts with another option."""
    checks.of_type("skip", skip, (str, type(None)), "the name of a tensor, or None")
    if not isinstance(reuse, bool) and reuse != REGIONS:
        raise InputError(f"reuse must be True, False or {REGIONS!r}, not {shown(reuse)}")
    if skip is not None and batches:
        raise InputError("skip cannot be combined with batches")
    other = "batches" if batches else "skip" if skip is not None else ""
    if reuse and other:
        raise InputError(f"reuse cannot be combined with {other}")
    other = other or (
        "reuse" if reuse else "a schedule" if schedule else f"batch {batch}" if batch != 1 else ""
    )
    if cascades and other:
        raise InputError(f"accuracy_budget: a share of requests cannot be combined with {other}")
    if batches and batch != 1:
        raise InputError(f"batch must be omitted if batches is given, not {batch}")
    check_sizes(config, batches)
    if schedule is None:
        return
    if batches:
        if isinstance(schedule, Schedule):
            raise InputError("schedule: with batches, it must be a dict with a schedule for each size")
        for size in schedule:
            if size not in batches:
                sizes = ", ".join(map(str, batches))
                raise InputError(f"schedule: there is no batch size {shown(size)}, only {sizes}")
    elif not isinstance(schedule, Schedule):
        raise InputError("schedule: a dict of schedules for batch sizes needs batches")
    given = schedule.values() if isinstance(schedule, Mapping) else [schedule]
    if (batches or skip is not None or reuse) and any(each.programs for each in given):
        option = "batches" if batches else "reuse" if reuse else "skip"
        raise InputError(
            f"schedule: program texts cannot be combined with {option}, which makes other programs"
        )


def _check_types(schedule: Any, dram: Any, strict: Any, cache: Any, record: Any) -> None:
    """Check the types of the arguments of `compile`."""
    kinds = (Schedule, Mapping, type(None))
    checks.of_type("schedule", schedule, kinds, "a Schedule, a dict of them by batch size, or None")
    for each in schedule.values() if isinstance(schedule, Mapping) else ():
        checks.of_type("schedule", each, Schedule, "a Schedule for each batch size")
    checks.of_type("dram", dram, DramTiming, "a DramTiming")
    latency, rate = dram.latency, dram.bytes_per_cycle
    checks.integer("latency of dram", latency, 1)
    checks.of_type("bytes_per_cycle of dram", rate, (int, float, type(None)), "a number or None")
    if rate is not None and not rate > 0:
        raise InputError(f"bytes_per_cycle of dram must be more than 0, not {shown(rate)}")
    checked_throttle(dram.throttle)
    checks.of_type("strict", strict, bool, "True or False")
    checks.of_type("cache", cache, (bool, type(None)), "True, False or None")
    if record is not None:
        from compiler.pipeline import CompilationTrace  # takes long to load

        checks.of_type("record", record, CompilationTrace, "a CompilationTrace or None")


def _check_database(database: Any) -> None:
    """Check the type of a database argument."""
    if isinstance(database, (str, Path, bool)):
        return
    from compiler.tuning_db.database import TuningDatabase  # takes long to load

    checks.of_type("database", database, TuningDatabase, "a TuningDatabase, its URL or file, True or False")


def _rounding(source: ModelSource, rounding: str | None) -> str:
    """Return `rounding`, or the model's default if it is None; raise InputError if it is unknown."""
    if rounding is None:
        return source.rounding
    if rounding not in ROUNDINGS:
        raise InputError(f"rounding must be {' or '.join(ROUNDINGS)}, not {shown(rounding)}")
    return rounding


def _cache_entry(
    store: ContentStore, source: ModelSource, config: MlaConfig, options: CompileOptions
) -> "NetworkCache":
    """Return the cache entry of the network that results from the given model and options."""
    from compiler.runtime.package_writer import NetworkCache

    # The seed affects only random calibration samples.
    uses_seed = source.floating and options.calibration is None
    return NetworkCache(store, source, config, options if uses_seed else replace(options, seed=0))


def prune(
    model: Path | str | Graph | Any,
    pattern: str = "2:4",
    *,
    share: float = 0.5,
    tile: int = 16,
    samples: Any = None,
    train: Callable[[Any], object] | None = None,
    keep: Sequence[str] = (),
) -> Any:
    """Set weights of dense layers and convolutions to zero, in a pattern from which the accelerator gains.

    Weights are pruned in convolutions without groups and dense layers whose weights are constant and read once, with
    at least four inputs ("2:4") or more than one tile ("tiles").

    Parameters
    ----------
    model : path, Graph, ModelSource, torch.nn.Module or torch.export.ExportedProgram
        Float model, as `compiler.compile` accepts it; the layers of a module that are pruned are torch.nn.Linear and
        torch.nn.Conv2d.
    pattern : str
        "2:4": of each four consecutive inputs of an output, at each kernel position, two weights are zero. "tiles":
        tiles of `tile` outputs and inputs, at one kernel position, are zero as a whole.
    share : float
        With "tiles", share of the tiles of each layer that become zero, 0 to 1.
    tile : int
        Outputs and inputs of a tile: N of the machine.
    samples : Calibration, or tensor, tuple of tensors or list of these
        Samples of the inputs, with which the remaining weights compensate the error of the outputs: as
        `compiler.compile` accepts them for `calibration`; for a module, one or more batches, each a tensor or the
        positional arguments. None: the remaining weights do not change.
    train : callable, optional
        Function that trains a module, which is its argument. Weights that are zero stay zero while it runs, with
        any optimizer that it creates.
    keep : sequence of str
        Names of nodes or submodules that are not pruned; a submodule stands for all layers in it.

    Returns
    -------
    Graph or torch.nn.Module
        A new graph, or the module, whose weights have changed.

    Raises
    ------
    InputError
        The model cannot be read, an argument is invalid, `train` is given for a model that is not a module, the samples
        lead to infinite values, or there is nothing to prune; the message says why.

    Examples
    --------
    >>> graph = compiler.prune("network.onnx", "tiles", share=0.5, samples=samples)
    >>> network = compiler.compile(graph, "n16", calibration=samples)
    """
    from compiler.quantize.weights import check_pattern

    check_pattern(pattern, share, tile)
    keep = checks.texts("keep", keep)
    form = {"pattern": pattern, "share": share, "tile": tile}
    if _trains(model):
        if train is not None and not callable(train):
            raise InputError(f"train must be a function, not {shown(train)}")
        return _pruned_module(model, form, samples, train, keep)
    if train is not None:
        raise InputError("train: only a torch.nn.Module can be trained, not a graph or a model file")
    source = model if isinstance(model, ModelSource) else ModelSource(model)
    return _pruned_graph(source.graph, form, checks.calibration(samples, "samples"), keep)


def _trains(model: Any) -> bool:
    """Return True for a PyTorch module whose weights can be changed, which an exported program is not."""
    from compiler.frontends.torch_module import is_module, torch_library

    return is_module(model) and isinstance(model, torch_library().nn.Module)


def _may_prune(shape: Sequence[int], form: Mapping[str, Any]) -> bool:
    """Return True if weights with the shape (outputs, ..., inputs) can be pruned."""
    if form["pattern"] == "2:4":
        return shape[-1] >= 4
    return max(shape[0], shape[-1]) > form["tile"]


def _too_small(form: Mapping[str, Any]) -> str:
    """Return why weights cannot be pruned if `_may_prune` is False."""
    return "less than four inputs" if form["pattern"] == "2:4" else "no more than one tile of weights"


def _check_kept(keep: Sequence[str], known: Sequence[str], reasons: Mapping[str, str]) -> None:
    """Check the names that are not pruned, and that layers are left: `reasons` are those of layers that are not pruned.

    A layer that is pruned has an empty reason.
    """
    for each in keep:
        if each not in known:
            raise InputError(f"keep: there is no layer {shown(each)}")
    if all(reasons.values()):
        listed = "".join(f"; {shown(name)} has {why}" for name, why in [*reasons.items()][:_LISTED])
        raise InputError(f"the model has no dense layer or convolution to prune{listed}")


def _pruned_graph(graph: Graph, form: dict[str, Any], samples: Any, keep: Sequence[str]) -> Graph:
    from compiler.ir.graph import rebuild
    from compiler.passes import simplify
    from compiler.quantize.plan import without_hybrids
    from compiler.quantize.ranges import samples_of, with_states
    from compiler.quantize.weights import moments_of_samples, pruned
    from compiler.reference import evaluate

    graph, _ = without_hybrids(simplify(graph))

    def reason(node: Node) -> str:
        weights = graph.tensors[node.inputs[1]]
        if node.op == "block_dense":
            return "integer weights with scales for blocks, which are not float32"
        if weights.data is None or weights.dtype != "float32":
            return (
                "weights that are computed"
                if weights.data is None
                else f"weights of {weights.dtype}, not float32"
            )
        if node.attributes.get("groups", 1) != 1:
            return "groups"
        if len(graph.consumers(weights.name)) > 1 or weights.name in graph.outputs:
            return "weights that are read more than once"
        if not _may_prune(weights.shape, form):
            return _too_small(form)
        return "a name in keep" if node.name in keep else ""

    reasons = {node.name: reason(node) for node in graph if node.op in ("dense", "block_dense", "conv2d")}
    _check_kept(keep, list(graph.nodes), reasons)
    given = [] if samples is None else with_states(graph, samples_of(graph, samples))
    values = [evaluate(graph, sample, keep=True) for sample in given]
    changed = {}
    for node in graph:
        if not reasons.get(node.name, "another operator"):
            weights = graph.tensors[node.inputs[1]]
            assert weights.data is not None
            moments = moments_of_samples(graph, node, values)
            data = pruned(weights.data, moments=None if moments is None else moments[0], **form)
            changed[weights.name] = replace(weights, data=data)
    return rebuild(graph, graph, changed=changed)


def _pruned_module(
    module: Any,
    form: dict[str, Any],
    samples: Any,
    train: Callable[[Any], object] | None,
    keep: Sequence[str],
) -> Any:
    from compiler.frontends.torch_module import torch_library
    from compiler.quantize.weights import pruned

    torch = torch_library()
    known = dict(module.named_modules())
    layers = {
        name: each
        for name, each in known.items()
        if isinstance(each, torch.nn.Linear) or (isinstance(each, torch.nn.Conv2d) and each.groups == 1)
    }

    def reason(name: str, layer: Any) -> str:
        if not _may_prune((layer.weight.shape[0], layer.weight.shape[1]), form):
            return _too_small(form)
        kept = any(not each or name == each or name.startswith(f"{each}.") for each in keep)
        return "a name in keep" if kept else ""

    reasons = {name: reason(name, each) for name, each in layers.items()}
    _check_kept(keep, list(known), reasons)
    chosen = {name: each for name, each in layers.items() if not reasons[name]}
    moments = _module_moments(torch, module, chosen, samples)
    for path, layer in chosen.items():
        weights = layer.weight.detach().cpu().numpy()
        last = weights if weights.ndim == 2 else weights.transpose(0, 2, 3, 1)
        made = pruned(last, moments=moments.get(path), **form)
        made = made if weights.ndim == 2 else made.transpose(0, 3, 1, 2)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(made.copy()).to(layer.weight))
    if train is None:
        return module

    class Masked(torch.nn.Module):  # type: ignore[misc, name-defined]
        """Weights multiplied by a mask."""

        def __init__(self, mask: Any):
            super().__init__()
            self.register_buffer("mask", mask, persistent=False)

        def forward(self, weight: Any) -> Any:
            return weight * self.mask

    from torch.nn.utils import parametrize  # type: ignore[import-not-found]

    for layer in chosen.values():
        mask = (layer.weight.detach() != 0).to(layer.weight)
        parametrize.register_parametrization(layer, "weight", Masked(mask))
    try:
        train(module)
    finally:
        for layer in chosen.values():
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)
    return module


def _module_moments(torch: Any, module: Any, layers: Mapping[str, Any], samples: Any) -> dict[str, Any]:
    """Return the mean products of the elements that the weights of each layer multiply, where these can be computed."""
    from compiler.quantize.weights import MAX_PRODUCTS

    totals: dict[str, Any] = {}
    counts: dict[str, int] = {}

    def collect(name: str, layer: Any, x: Any) -> None:
        if isinstance(layer, torch.nn.Conv2d):
            if isinstance(layer.padding, str) or layer.padding_mode != "zeros":
                return
            size = layer.kernel_size
            x = torch.nn.functional.unfold(x, size, layer.dilation, layer.padding, layer.stride)
            x = x.reshape(len(x), layer.in_channels, size[0] * size[1], -1).permute(0, 3, 2, 1)
        rows = x.reshape(-1, layer.weight[0].numel()).double()
        totals[name] = totals.get(name, 0) + rows.T @ rows
        counts[name] = counts.get(name, 0) + len(rows)

    if samples is None:
        return {}
    batches = [
        each if isinstance(each, tuple) else (each,)
        for each in (samples if isinstance(samples, list) else [samples])
    ]
    if not batches or not all(isinstance(part, torch.Tensor) for batch in batches for part in batch):
        raise InputError(
            f"samples must be a tensor, a tuple of tensors or a list of these, not {shown(samples)}"
        )
    hooks = [
        layer.register_forward_hook(lambda it, given, _, name=name: collect(name, it, given[0]))
        for name, layer in layers.items()
        if layer.weight[0].numel() <= MAX_PRODUCTS
    ]
    training = module.training
    try:
        module.eval()
        with torch.no_grad():
            for batch in batches:
                try:
                    module(*batch)
                except (RuntimeError, TypeError, ValueError, IndexError) as error:
                    raise InputError(f"samples: the module does not accept them: {error}") from None
    finally:
        module.train(training)
        for hook in hooks:
            hook.remove()
    endless = [name for name, total in totals.items() if not torch.isfinite(total).all()]
    if endless:
        raise InputError(
            f"samples: the input of {shown(endless[0])} must be finite, but has infinite values or NaN"
        )
    return {name: (total / counts[name]).cpu().numpy() for name, total in totals.items()}
