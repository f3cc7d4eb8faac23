"""Compilation pipeline from a graph to a compiled network.

`ModelCompiler` runs the stages that do not depend on a schedule, in this order:

1. the graph passes (`compiler.passes.PASSES`);
2. quantization of a float model, or, in a quantized model, replacement of float chains by lookup tables and of scales
   for blocks of weights by factors;
3. rewriting of comparisons and selections (`passes.canonicalize.canonicalize_logic`), and removal of redundant nodes
   and channels (`compiler.passes.reduce_graph`) and exact changes of kernel sizes (`compiler.passes.kernel_sizes`),
   unless the estimated cycles rise; then approximations, if they are switched on (`compiler.passes.approximations`);
4. splitting of products of int16 activations into products of bytes (`passes/split_bytes.py`), of averages that count
   padding and of scattered resizings (`pad_averages` and `separate_resizes` in `passes/canonicalize.py`), and of maxima
   over large windows and images (`separate_maxima` in `passes/kernel_sizes.py`), and batching;
5. partition into parts on the accelerator and on the host, and choice of fusions.

`ModelCompiler.network` runs the remaining stages for one schedule and for each part on the accelerator:

6. lowering of fused groups of nodes to layers;
7. if no schedule is given, construction of the initial schedule, which is relaxed until it fits the memories;
8. code generation (`compiler.codegen.generate`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from compiler.cache.digest import name as digest_of
from compiler.cache.digest import shape_of
from compiler.codegen.executable import CommandStream, StageExecutable
from compiler.codegen.generate import LayerCodegen, generate
from compiler.cost.roofline import (
    CompulsoryTraffic,
    body_floor,
    compulsory_traffic,
    layer_floors,
    network_floor,
)
from compiler.initial_schedule.fit_memory import fit
from compiler.initial_schedule.initial import estimates, initial_schedule
from compiler.ir.graph import Graph, rebuild
from compiler.ir.ops import LOGIC_OPS, ORDERING
from compiler.lowering.fusion_groups import chains_as_tables, fuse_epilogues, group
from compiler.lowering.lower import LoweredNetwork, float_boundary, lower
from compiler.lowering.partition import (
    BOUNDARY_REASON,
    GraphPart,
    HostNode,
    cheaper_on_host,
    check_strict,
    host_microseconds,
    named_nodes,
    partition,
    parts_in,
)
from compiler.options import DEFAULT_DRAM, REGIONS, CompileOptions, DramTiming
from compiler.passes import reduce_graph, simplify
from compiler.passes.approximations import APPROXIMATIONS
from compiler.passes.batch import with_batch, with_length
from compiler.passes.canonicalize import canonicalize_logic, pad_averages, separate_resizes
from compiler.passes.channel_orders import absorb_shuffles
from compiler.passes.control_flow import known_trips
from compiler.passes.kernel_sizes import KERNEL_PASSES, Rewritten, separate_maxima
from compiler.passes.loop_unrolling import WORDS_PER_LAYER, LoopUnroller, StepCost
from compiler.passes.redundant_nodes import Removed, name_apart
from compiler.passes.repeated_steps import with_loops
from compiler.passes.split_bytes import split_bytes
from compiler.quantize import QuantizationReport, quantize
from compiler.quantize.plan import is_float, left_float, obstacle
from compiler.quantize.ranges import random_samples
from compiler.quantize.report import WeightReport
from compiler.quantize.rewrite import factor_blocks
from compiler.reference import Kernels
from compiler.reference.control import MAX_ITERATIONS
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.known_results import (
    check_single,
    single,
    tensor_named,
    with_cascade,
    with_reuse,
    with_skip,
)
from compiler.runtime.program_text import with_texts
from compiler.runtime.region_programs import with_regions
from compiler.runtime.size_variants import SizedNetwork, with_lengths, with_sizes
from compiler.runtime.stages import LayerInfo, NetworkState, Stage, control_of
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.util.lru_cache import LruCache
from hw.config import MlaConfig
from hw.errors import InputError, shown


@dataclass(eq=False)
class CompilationTrace:
    """Intermediate results of all stages, filled in by `compile`.

    Parameters
    ----------
    config : MlaConfig
        Hardware configuration of the target.
    rounding : str
        Name of the rounding, as in `compile`.
    dram : DramTiming
        DRAM timing assumed by timeline visualizations.
    graphs : dict
        Graphs by stage, in order: as imported, after each pass, after quantization, and without redundant nodes and
        channels.
    removed : tuple of Removed
        Redundant nodes and channels.
    rewritten : tuple of Rewritten
        Nodes that are computed in another way than the model states.
    parts : list of GraphPart
        Parts of the graph, which alternate between accelerator and host.
    host : dict
        Reasons why nodes run on the host, by node name.
    streams : list of CommandStream
        Command stream of each part on the accelerator.
    network : CompiledNetwork or None
        The compiled network.
    """

    config: MlaConfig = field(default_factory=MlaConfig)
    rounding: str = "reference"
    dram: DramTiming = DEFAULT_DRAM
    graphs: dict[str, Graph] = field(default_factory=dict)
    removed: tuple[Removed, ...] = ()
    rewritten: tuple[Rewritten, ...] = ()
    parts: list[GraphPart] = field(default_factory=list)
    host: dict[str, str] = field(default_factory=dict)
    streams: list[CommandStream] = field(default_factory=list)
    network: CompiledNetwork | None = None


def build(
    graph: Graph,
    config: MlaConfig,
    options: CompileOptions,
    record: CompilationTrace | None = None,
    sized: Callable[[int], Graph] | None = None,
) -> CompiledNetwork:
    """Compile a graph for a hardware configuration; `record` collects the results of all stages.

    If `options` specify lengths, `graph` has the longest of them, and `sized` returns the graph for each other length.

    Raises
    ------
    InputError
        The model cannot be compiled, or the schedule is not legal for it.
    """
    record = record or CompilationTrace()

    def compile_variant(variant: CompileOptions) -> CompiledNetwork:
        return ModelCompiler(graph, config, variant, record).network(variant.schedule, record)

    if (options.skip is not None or options.reuse) and graph.states:
        option = "reuse" if options.reuse else "skip"
        raise InputError(
            f"{option}: {graph.name!r} keeps state {graph.states[0].input!r} from one sample to the next"
        )
    single_program = replace(options, single=True, offset=0)
    if options.lengths is not None and sized is not None:
        network = with_lengths(options, LengthGraphs(graph, config, single_program, sized, record).prepared)
    elif options.batches:
        network = with_sizes(options, compile_variant)
    elif options.skip is not None:
        network = with_skip(compile_variant(single_program), options.skip, record.streams, options.offset)
    elif options.reuse:
        network = compile_variant(single_program)
        network = (
            with_regions(network, record.streams, options)
            if options.reuse == REGIONS
            else with_reuse(network, options.offset)
        )
    elif options.cascades:
        network = _cascade(graph, config, options, record)
    else:
        network = compile_variant(options)
    record.network = network
    return network


def _cascade(
    graph: Graph, config: MlaConfig, options: CompileOptions, record: CompilationTrace
) -> CompiledNetwork:
    """Compile a network with few bits and the exact network, which runs if the former is not certain of the label.

    The exact network is compiled alone if no cascade is expected to take fewer cycles within the budget.

    Raises
    ------
    InputError
        The output is not a softmax as `confidence_of` requires, or the programs do not fit together.
    """
    from compiler.quantize.cascade import confidence_of, fit_cascade

    single_program = replace(options, single=True, offset=0)
    prepared = ModelCompiler(graph, config, single_program, record)
    quantized, budget = record.graphs["quantized"], options.accuracy_budget
    assert budget is not None and budget.share is not None and options.calibration is not None
    confidence_of(quantized)
    plain = replace(single_program, accuracy_budget=None, calibration=None, keep_float=(), int16=())

    def cycles(made: Graph) -> float:
        parts = ModelCompiler(made, config, plain).parts
        return sum(each for _, each in _layers(list(parts_in(parts)), config, plain))

    narrow, report = fit_cascade(
        quantized,
        options.calibration,
        budget.share,
        cycles,
        config,
        rounding=cast(Kernels, options.rounding),
        lanes=_lanes(config),
    )
    whole = prepared.report or QuantizationReport(report.samples, 0, False, (), ())
    if narrow is None:
        exact = ModelCompiler(quantized, config, replace(plain, single=False, offset=options.offset), record)
        made = exact.network(None, record)
    else:
        exact, streams = prepared.network(None, record), CompilationTrace()
        few = ModelCompiler(narrow, config, plain).network(None, streams)
        assert report.threshold is not None
        made = with_cascade(exact, few, streams.streams, report.threshold, options.offset)
    return replace(made, quantization=replace(whole, cascade=report))


class LengthGraphs:
    """Graphs of a model for several lengths of a sequence, with the same weights and quantization.

    A float model is quantized for the longest length only. To find out how its sizes depend on the length, it is also
    quantized for the shortest length, with random samples.

    Parameters
    ----------
    longest : Graph
        Model as imported, for the longest length.
    config, options, record
        As for `ModelCompiler`.
    sized : callable
        Returns the imported model for a length.
    """

    def __init__(
        self,
        longest: Graph,
        config: MlaConfig,
        options: CompileOptions,
        sized: Callable[[int], Graph],
        record: CompilationTrace,
    ):
        assert options.lengths is not None
        self.config, self.options, self.record = config, options, record
        self.imported, self.lengths = sized, options.lengths
        self.longest = ModelCompiler(longest, config, options, record)
        self.ends = (self.lengths.values[0], self.lengths.values[-1])
        self.graphs = (self.imported(self.ends[0]), longest)
        self.quantized: tuple[Graph, Graph] | None = None
        if self.longest.report is not None and self.longest.report.measured:
            trace = CompilationTrace()
            plain = replace(options, calibration=None)
            ModelCompiler(self.graphs[0], config, plain, trace)
            self.quantized = (trace.graphs["quantized"], record.graphs["quantized"])

    def prepared(self, length: int) -> SizedNetwork:
        """Return the network for a length, before code generation.

        Raises
        ------
        InputError
            The model has other nodes or constants for this length.
        """
        compiler = self.longest if length == self.ends[1] else self._compiler(length)

        def compiled() -> tuple[CompiledNetwork, list[CommandStream]]:
            trace = CompilationTrace() if compiler is not self.longest else self.record
            return compiler.network(None, trace), trace.streams

        return SizedNetwork(compiler.graph, compiler.lowered(self.longest.fusions), compiled)

    def _compiler(self, length: int) -> "ModelCompiler":
        imported = self.imported(length)
        expected = with_length(self.graphs, self.ends, length)
        if digest_of(imported) != digest_of(expected):
            raise InputError(
                f"{imported.name!r} differs in more than sizes for {self.lengths.name} {length} and {self.ends[1]}"
            )
        quantized = self.quantized
        graph = expected if quantized is None else with_length(quantized, self.ends, length)
        return ModelCompiler(graph, self.config, replace(self.options, calibration=None))


class ModelCompiler:
    """Compiler of one model, which can compile the model with several schedules.

    Parameters
    ----------
    graph : Graph
        Model as imported by the front end.
    config : MlaConfig
        Hardware configuration to compile for.
    options : CompileOptions
        Options of the compilation; the schedule among them is ignored.
    record : CompilationTrace or None
        Trace that receives the results of all stages.

    Raises
    ------
    InputError
        The model cannot be compiled.
    """

    def __init__(
        self, graph: Graph, config: MlaConfig, options: CompileOptions, record: CompilationTrace | None = None
    ):
        #: Full hardware configuration, and the configuration reduced to the memory limits.
        self.machine, self.config = config, options.limits.within(config)
        if options.cascades and not options.single:
            raise InputError(
                "accuracy_budget: a share of requests makes a cascade of two networks, for which no programs can be "
                "searched; compile it, or use a budget in labels or decibels"
            )
        self.options, record = options, record or CompilationTrace()
        record.config, record.rounding = config, options.rounding
        record.graphs["imported"] = graph
        graph = name_apart(simplify(graph, record.graphs))
        graph, self.report = _integer_graph(graph, config, options)
        graph = canonicalize_logic(graph, options.rounding)
        record.graphs["quantized"] = graph
        graph, unrolled = _unrolled(graph, self.config, options)
        graph, self.removed = _reduced(graph, self.config, options)
        graph, self.rewritten = _with_kernels(graph, self.config, options)
        graph, approximated = _approximated(graph, options)
        self.rewritten += approximated
        self.graph = with_batch(_in_parts(graph, self.config, options), options.batch)
        self.rewritten = (*unrolled, *self.rewritten)
        record.graphs["reduced"], record.removed = self.graph, self.removed
        record.rewritten = self.rewritten
        self.skip = None if options.skip is None else tensor_named(self.graph, options.skip)
        moved = _on_host(self.graph, self.config, options)
        self.parts, reasons = partition(self.graph, options.rounding, self.config, self.skip, moved)
        moved = {name: why for name, why in moved.items() if reasons.get(name) == why}
        self.rewritten += tuple(
            Rewritten(node.name, node.operator, "place_on_host", moved[node.name])
            for _, node in self.graph.walk()
            if node.name in moved
        )
        reasons = _host_reasons(self.graph, self.report, reasons)
        record.parts, record.host = self.parts, reasons
        self.host = _host_nodes(self.graph, reasons)
        if options.strict:
            check_strict(self.graph.name, self.host)
        self._device = [part.graph for part in parts_in(self.parts) if part.device]
        #: Fusions chosen by the heuristics.
        self.fusions = tuple(fusion for each in self._device for fusion in fuse_epilogues(each))
        self._lowered: dict[tuple[tuple[str, ...], ...], list[LoweredNetwork]] = {}
        self._codegens: dict[int, LayerCodegen] = {}
        self._shapes: dict[int, tuple[str, ...]] = {}
        self._networks: LruCache[CompiledNetwork] = LruCache(_MAX_NETWORK_BYTES)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, without cached networks and caches keyed by object identity."""
        return {
            name: {} if name in _IDENTITY_CACHES else value
            for name, value in vars(self).items()
            if name != "_networks"
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _networks=LruCache(_MAX_NETWORK_BYTES))

    def open_states(self) -> None:
        """Make the states plain inputs and outputs, so that measurements supply and compare them like others."""
        if self.graph.states:
            self.graph = rebuild(self.graph, self.graph).keep(())

    def lowered(self, fusions: tuple[tuple[str, ...], ...]) -> list[LoweredNetwork]:
        """Return the layers of each part on the accelerator for the given fusions; the result is cached.

        Raises
        ------
        InputError
            A fusion is not possible.
        """
        if fusions not in self._lowered:
            known = {name for each in self._device for name in each.nodes}
            for name in (name for names in fusions for name in names):
                if name not in known:
                    raise InputError(
                        f"schedule: fusion of {name!r}: there is no such node on the accelerator"
                    )
            self._lowered[fusions] = [self._lower(each, fusions) for each in self._device]
        return self._lowered[fusions]

    def codegen(self, lowered: LoweredNetwork) -> LayerCodegen:
        """Return the code generator of a lowered network, which caches layer steps across schedules."""
        return self._codegens.setdefault(id(lowered), LayerCodegen(self.config))

    def shapes(self, lowered: LoweredNetwork) -> tuple[str, ...]:
        """Return the shape of each layer of a lowered network (`compiler.cache.digest.shape_of`)."""
        if id(lowered) not in self._shapes:
            self._shapes[id(lowered)] = tuple(shape_of([layer]) for layer in lowered.layers)
        return self._shapes[id(lowered)]

    def network(
        self, schedule: Schedule | None = None, record: CompilationTrace | None = None
    ) -> CompiledNetwork:
        """Compile the model with a schedule; None selects the schedule chosen by the heuristics.

        The networks of recent schedules are cached, since searches compile each candidate several times: to compare its
        programs with known ones, to rank it, and to measure it.

        Raises
        ------
        InputError
            The schedule is not legal for the model.
        """
        if schedule is None or record is not None:
            return self._compiled(schedule, record or CompilationTrace())
        key = schedule.fusions, tuple(schedule.layers.items()), tuple(schedule.programs.items())
        found = self._networks.get(key)
        if found is None:
            found = self._compiled(schedule, CompilationTrace())
            self._networks.put(key, found, sum(executable.memory for executable in found.codes))
        return found

    def _compiled(self, schedule: Schedule | None, record: CompilationTrace) -> CompiledNetwork:
        made = replace(_Compilation(self, schedule, record.streams).network(), batch=self.options.batch)
        self.options.limits.check(sum(executable.memory for executable in made.codes))
        return with_texts(made, schedule.programs) if schedule else made

    def _lower(self, graph: Graph, fusions: tuple[tuple[str, ...], ...]) -> LoweredNetwork:
        inside = [names for names in fusions if names[0] in graph.nodes]
        lowered = lower(graph, group(graph, inside), self.options.rounding, self.config)
        if lowered.refused:
            lines = "; ".join(f"{name}: {why}" for name, why in lowered.refused.items())
            raise InputError(f"schedule: its fusions are not possible: {lines}")
        return lowered


def _integer_graph(
    graph: Graph, config: MlaConfig, options: CompileOptions
) -> tuple[Graph, QuantizationReport | None]:
    """Quantize a float model and report on it; in a quantized model, replace float chains and scales for blocks."""
    why = obstacle(graph)
    if why is None:
        return _quantized(graph, config, options)
    if options.calibration is not None and options.accuracy_budget is None:
        raise InputError(f"calibration is for float models; {graph.name} {why}")
    if options.keep_float:
        raise InputError(f"keep_float is for float models; {graph.name} {why}")
    if options.int16:
        raise InputError(f"int16 is for float models; {graph.name} {why}")
    graph = factor_blocks(chains_as_tables(graph, options.rounding), _lanes(config))
    if options.bits_budget is None:
        return graph, None
    graph, weights = _with_bits(graph, config, options)
    return graph, QuantizationReport(weights.samples, 0, False, (), (), weights=weights)


def _lanes(config: MlaConfig) -> int:
    """Return the rows of a tile of weights whose sums may have factors; 0 if the target has no scaled sums."""
    return config.n if config.wide else 0


def _with_bits(
    graph: Graph, config: MlaConfig, options: CompileOptions, exact: Graph | None = None
) -> tuple[Graph, WeightReport]:
    """Round the weights of a quantized graph to as few bits as the accuracy budget permits.

    The accuracy is relative to `exact`, the float model, or to the graph itself.
    """
    from compiler.quantize.bits import fit_bits

    assert options.calibration is not None and options.bits_budget is not None
    rounding = cast(Kernels, options.rounding)
    return fit_bits(
        graph,
        options.calibration,
        options.bits_budget,
        rounding=rounding,
        lanes=_lanes(config),
        exact=exact,
    )


def _quantized(graph: Graph, config: MlaConfig, options: CompileOptions) -> tuple[Graph, QuantizationReport]:
    """Quantize a float model, with random samples if there is no calibration data."""
    given = options.calibration
    samples = random_samples(graph, options.seed) if given is None else given
    made, report = quantize(
        graph,
        samples,
        skip=options.keep_float,
        int16=options.int16,
        rounding=cast(Kernels, options.rounding),
        random=given is None,
        lanes=_lanes(config),
        budget=options.bits_budget,
    )
    made = simplify(made)
    if options.bits_budget is not None:
        if is_float(made):
            causes = dict.fromkeys(why for why in report.kept.values() if why != BOUNDARY_REASON)
            reasons = "; ".join(causes) or "it has no node that can be quantized"
            raise InputError(f"accuracy_budget: nothing in {graph.name!r} is quantized: {reasons}")
        exact = None if report.int16 is None else graph  # what the results in int16 were chosen for
        made, weights = _with_bits(made, config, options, exact)
        report = replace(report, weights=weights)
    return made, report


#: Minimum number of nodes of repeated steps that become a loop if the user specifies how far loops are unrolled.
_MIN_REPEATED = 64
#: Maximum total size in bytes of the memory images of cached networks; caches that are keyed by object identity.
_MAX_NETWORK_BYTES = 64 << 20
_IDENTITY_CACHES = frozenset({"_lowered", "_codegens", "_shapes"})


def _in_parts(graph: Graph, config: MlaConfig, options: CompileOptions) -> Graph:
    """Return a graph in which large or composed operators are in parts that the machine computes."""
    parts = split_bytes(pad_averages(name_apart(graph), options.rounding), options.rounding)
    return separate_maxima(separate_resizes(parts, config), config)


def _unrolled(
    graph: Graph, config: MlaConfig, options: CompileOptions
) -> tuple[Graph, tuple[Rewritten, ...]]:
    """Unroll loops with a known number of iterations as far as their costs suggest or the user has specified.

    Repeated steps whose programs do not fit the instruction store become loops first. Loops need the host between their
    iterations, which strict mode, batches and programs with guards do not permit.
    """

    def measure(body: Graph) -> StepCost:
        parts, _ = partition(_in_parts(body, config, options), options.rounding, config)
        return _cost(parts, config, options)

    whole = bool(
        options.strict
        or options.single
        or options.batches
        or options.batch > 1
        or options.skip
        or options.reuse
    )
    chooses = options.runs("unroll_loops")
    if (chooses or options.unroll) and not whole:
        least = _MIN_REPEATED if options.unroll else config.wis_words // WORDS_PER_LAYER
        graph = with_loops(graph, least)
    unroller = LoopUnroller(
        config,
        cast(Kernels, options.rounding),
        options.host_costs,
        measure,
        dict(options.unroll),
        chooses=chooses,
        whole=whole,
    )
    return unroller.run(graph)


def _cost(parts: Sequence[GraphPart], config: MlaConfig, options: CompileOptions) -> StepCost:
    """Return the cost of the stages of a graph; stages of an unknown number of iterations count once."""
    total = StepCost()
    for part in parts:
        if part.device:
            layers = _layers([part], config, options)
            total += StepCost(sum(cycles for _, cycles in layers), 0.0, 1.0, len(layers))
        elif part.bodies:
            (node,) = part.graph
            bodies = [_cost(body, config, options) for body in part.bodies]
            trips = None
            if node.op == "loop":
                trips = known_trips(node, [tensor.data for tensor in part.graph.ins(node)], MAX_ITERATIONS)
            share = (1 / len(bodies)) if trips is None else trips
            for body in bodies:
                total += replace(body * share, layers=body.layers)
        else:
            names = [node.name for node in part.graph]
            total += StepCost(0.0, host_microseconds(part.graph, names, options.host_costs))
    return total


def _reduced(graph: Graph, config: MlaConfig, options: CompileOptions) -> tuple[Graph, tuple[Removed, ...]]:
    """Remove redundant nodes and channels if that does not raise the estimated cycles; also return what was removed.

    The estimate is that of one sample, so that the programs for all batch sizes compute the same graph. If it rises,
    only nodes are removed, or nothing.
    """
    rounding = cast(Kernels, options.rounding)
    pinned = _pinned(graph, options)
    before: tuple[set[str], float] | None = None
    for multiple in (config.n, None):
        reduced, removed = reduce_graph(graph, rounding, pinned, multiple, options.runs)
        if reduced is graph:
            break
        before = before or _estimated(graph, config, options)
        host, cycles = _estimated(reduced, config, options)
        if host <= before[0] and cycles <= before[1]:
            return reduced, removed
    return graph, ()


def _pinned(graph: Graph, options: CompileOptions) -> tuple[str, ...]:
    """Return the tensors that passes must not change."""
    return () if options.skip is None else (tensor_named(graph, options.skip),)


def _with_kernels(
    graph: Graph, config: MlaConfig, options: CompileOptions
) -> tuple[Graph, tuple[Rewritten, ...]]:
    """Change kernel sizes, strides and orders of channels where results are equal and estimated cycles do not rise."""
    found: tuple[Rewritten, ...] = ()
    before: tuple[set[str], float] | None = None
    for each in (*KERNEL_PASSES, absorb_shuffles):
        if not options.runs(each.__name__):
            continue
        made, changes = each(graph, _pinned(graph, options))
        if made is graph:
            continue
        before = before or _estimated(graph, config, options)
        after = _estimated(made, config, options)
        if after[0] <= before[0] and after[1] <= before[1]:
            graph, before, found = made, after, (*found, *changes)
    return graph, found


def _approximated(graph: Graph, options: CompileOptions) -> tuple[Graph, tuple[Rewritten, ...]]:
    """Run the approximations that are switched on."""
    found: tuple[Rewritten, ...] = ()
    for each in APPROXIMATIONS:
        if options.runs(each.__name__):
            graph, changes = each(graph, _pinned(graph, options))
            found += changes
    return graph, found


def _on_host(graph: Graph, config: MlaConfig, options: CompileOptions) -> dict[str, str]:
    """Return the nodes that run on the host although the accelerator supports them, with the reasons.

    Programs with guards consist of one stage, in which no node can be moved by cost.
    """
    moved = dict.fromkeys(named_nodes(graph, options.host, "run on the host"), "asked to run on the host")
    kept = named_nodes(graph, options.keep_on_accelerator, "keep on the accelerator")
    if both := sorted(moved.keys() & kept):
        raise InputError(f"host: node {shown(both[0])} cannot be on the host and on the accelerator")
    if (
        not options.runs("place_on_host")
        or options.strict
        or options.single
        or options.batches
        or options.skip
        or options.reuse
    ):
        return moved
    costs = options.host_costs

    def microseconds(more: Mapping[str, str]) -> float:
        parts, reasons = partition(graph, options.rounding, config, moved={**moved, **more})
        cycles = sum(each for _, each in _layers(parts, config, options))
        stages = sum(part.device for part in parts_in(parts))
        return cycles / costs.clock + stages * costs.stage + host_microseconds(graph, reasons, costs)

    parts, _ = partition(graph, options.rounding, config, moved=moved)
    return moved | cheaper_on_host(graph, _layers(parts, config, options), kept, costs, microseconds)


def _layers(
    parts: Sequence[GraphPart], config: MlaConfig, options: CompileOptions
) -> list[tuple[tuple[str, ...], float]]:
    """Return the nodes and the estimated cycles of the layers outside of subgraphs; infinite if one does not fit."""
    found: list[tuple[tuple[str, ...], float]] = []
    for part in parts:
        if part.device:
            lowered = lower(
                part.graph, group(part.graph, fuse_epilogues(part.graph)), options.rounding, config
            )
            try:
                cycles = estimates(config, lowered, options.dram)
            except InputError:
                return [((), math.inf)]
            found += [(layer.nodes, cycles[layer.name][0]) for layer in lowered.layers]
    return found


def _estimated(graph: Graph, config: MlaConfig, options: CompileOptions) -> tuple[set[str], float]:
    """Return the nodes on the host, and the estimated cycles of all layers; infinite if a layer does not fit.

    Conversions and moves of real numbers at the boundary of the model do not count as nodes on the host.
    """
    parts, reasons = partition(_in_parts(graph, config, options), options.rounding, config)
    inside = {name for name, reason in reasons.items() if reason != BOUNDARY_REASON}
    return inside, sum(cycles for _, cycles in _layers(list(parts_in(parts)), config, options))


def _host_reasons(graph: Graph, report: QuantizationReport | None, reasons: dict[str, str]) -> dict[str, str]:
    """Return the reasons why nodes run on the host; reasons from quantization replace reasons from partitioning.

    Comparisons and the like are not quantized, but may read integers nevertheless, so their own reasons apply.
    """
    if report is None or not report.measured:  # the model was quantized already
        return left_float(graph, reasons)
    own = {node.name for _, node in graph.walk() if node.op in LOGIC_OPS | ORDERING}
    return {
        name: reason if name in own else report.kept.get(name, reason) for name, reason in reasons.items()
    }


def _host_nodes(graph: Graph, reasons: dict[str, str]) -> tuple[HostNode, ...]:
    """Return the nodes on the host in the order of the graph, including nodes of subgraphs."""
    edges, nodes = float_boundary(graph, reasons), [node for _, node in graph.walk() if node.name in reasons]
    return tuple(HostNode(node.name, node.operator, reasons[node.name], node.name in edges) for node in nodes)


class _Compilation:
    """Compilation of a model with one schedule."""

    def __init__(self, compiler: ModelCompiler, schedule: Schedule | None, seen: list[CommandStream]):
        self.compiler, self.given, self.seen = compiler, schedule, seen
        self.config, self.options = compiler.config, compiler.options
        self.fusions = compiler.fusions if schedule is None else schedule.fusions
        parts = [part for part in parts_in(compiler.parts) if part.device]
        each = zip(parts, compiler.lowered(self.fusions), strict=True)
        self.lowered = {id(part): lowered for part, lowered in each}
        self.schedules: dict[str, LayerSchedule] = {}
        self.before = 0  # number of layers whose code has been generated
        self.traffic: list[tuple[LoweredNetwork, CompulsoryTraffic]] = []  # of stages outside of subgraphs

    def network(self) -> CompiledNetwork:
        """Compile all stages."""
        compiler, graph = self.compiler, self.compiler.graph
        count = sum(len(each.layers) for each in self.lowered.values())
        stages = self._stages(compiler.parts, count, inside=False)
        return CompiledNetwork(
            name=graph.name,
            config=compiler.machine,
            inputs=tuple(graph.tensors[n] for n in graph.sample_inputs),
            outputs=tuple(graph.tensors[n] for n in graph.sample_outputs),
            stages=stages,
            schedule=self._schedule,
            host=compiler.host,
            rounding=self.options.rounding,
            floor=network_floor(self.traffic),
            graph=graph,
            layers=tuple(layer for each in self.lowered.values() for layer in each.layers),
            quantization=compiler.report,
            removed=compiler.removed,
            rewritten=compiler.rewritten,
            states=tuple(
                NetworkState(graph.tensors[state.input], graph.tensors[state.output], state.initial)
                for state in graph.states
            ),
        )

    @property
    def _schedule(self) -> Schedule:
        """Schedule of all stages that have been compiled."""
        return (
            self.given if self.given and not self.options.single else Schedule(self.fusions, self.schedules)
        )

    def _stages(self, parts: Sequence[GraphPart], count: int, *, inside: bool) -> tuple[Stage, ...]:
        """Compile the stages of the model or, if `inside`, of a subgraph; `count` is the total number of layers."""
        stages: list[Stage] = []
        for part in parts:
            graph, its = part.graph, self.lowered.get(id(part))
            inputs, outputs = (
                tuple(graph.tensors[n] for n in names) for names in (graph.inputs, graph.outputs)
            )
            if part.bodies:
                bodies = [self._stages(body, count, inside=True) for body in part.bodies]
                stages.append(Stage(inputs, outputs, control=control_of(graph, bodies)))
                continue
            if its is None:
                stages.append(Stage(inputs, outputs, graph=graph))
                continue
            schedule, executable = self._generate(its, (self.before, count))
            self.schedules |= schedule.layers
            self.before += len(its.layers)
            traffic = compulsory_traffic(self.seen[-1], self.config.n)
            if not inside:
                self.traffic.append((its, traffic))
            executable = replace(executable, config=self.compiler.machine)
            alone = body_floor(its, traffic)
            skipped = [each.name for each in inputs] == [self.compiler.skip]
            spared = alone if skipped or self.options.reuse or self.options.cascades else None
            stages.append(
                Stage(
                    inputs,
                    outputs,
                    code=executable,
                    infos=_infos(its, executable, traffic, self.compiler.shapes(its)),
                    floor=alone if inside else None,
                    spared=spared,
                )
            )
        return tuple(stages)

    def _generate(
        self, lowered: LoweredNetwork, layer_counts: tuple[int, int]
    ) -> tuple[Schedule, StageExecutable]:
        """Generate the code of a part under the given or the initial schedule; return that schedule and the code."""
        codegen = self.compiler.codegen(lowered)
        if self.given is None:
            return self._initial(lowered, layer_counts, self.seen)
        if codegen.reference is None:
            try:
                self._initial(lowered, layer_counts, [])
            except InputError:
                codegen.keep({})
        if not self.options.single:
            return self.given, self._code(lowered, self.given, layer_counts, self.seen)
        made: list[CommandStream] = []
        schedule = single(self.given, lowered, self.compiler.skip)
        executable = self._code(lowered, schedule, layer_counts, made)
        if len(executable.parts) > 1:  # without compact weights, programs are shorter
            schedule = schedule.unpacked()
            executable = self._code(lowered, schedule, layer_counts, made)
        check_single(self.compiler.graph.name, executable)
        self.seen.append(made[-1])
        return schedule, executable

    def _code(
        self,
        lowered: LoweredNetwork,
        schedule: Schedule,
        layer_counts: tuple[int, int],
        seen: list[CommandStream],
    ) -> StageExecutable:
        """Generate the code of a part under a schedule, which must be legal."""
        offset, dram, codegen = self.options.offset, self.options.dram, self.compiler.codegen(lowered)
        return generate(self.config, lowered, schedule, layer_counts, offset, seen, codegen, dram)

    def _initial(
        self, lowered: LoweredNetwork, layer_counts: tuple[int, int], seen: list[CommandStream]
    ) -> tuple[Schedule, StageExecutable]:
        """Generate the code of a part under the initial schedule, whose addresses are the reference for others."""
        offset, dram, codegen = self.options.offset, self.options.dram, self.compiler.codegen(lowered)
        first = initial_schedule(self.config, lowered, self.fusions, dram)
        if self.options.single:
            first = single(first, lowered, self.compiler.skip)
        codegen.reference = None
        made: list[CommandStream] = []
        schedule, executable = fit(self.config, lowered, first, layer_counts, offset, made, dram, codegen)
        if self.options.single:
            if len(executable.parts) > 1:  # without compact weights, programs are shorter
                first = first.unpacked()
                schedule, executable = fit(
                    self.config, lowered, first, layer_counts, offset, made, dram, codegen
                )
            check_single(self.compiler.graph.name, executable)
        seen.append(made[-1])
        codegen.keep(dict(seen[-1].starts))
        return schedule, executable


def _infos(
    lowered: LoweredNetwork,
    executable: StageExecutable,
    traffic: CompulsoryTraffic,
    shapes: tuple[str, ...],
) -> tuple[LayerInfo, ...]:
    each = zip(
        lowered.layers,
        layer_floors(lowered, traffic),
        executable.tags,
        executable.program_names,
        shapes,
        strict=True,
    )
    return tuple(
        LayerInfo(layer.name, layer.nodes, layer.ops, floor, tag, program, shape)
        for layer, floor, tag, program, shape in each
    )
