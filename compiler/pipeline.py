"""Compilation pipeline from a graph to a compiled network."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

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
from compiler.initial_schedule.initial import initial_schedule
from compiler.ir.graph import Graph
from compiler.lowering.fusion_groups import chains_as_tables, fuse_epilogues, group
from compiler.lowering.lower import LoweredNetwork, interface, lower
from compiler.lowering.partition import GraphPart, HostNode, check_strict, partition, parts_in
from compiler.options import CompileOptions
from compiler.passes import simplify
from compiler.passes.batch import with_batch
from compiler.passes.constant_folding import name_apart
from compiler.quantize import QuantizationReport, quantize
from compiler.quantize.plan import left_float, obstacle
from compiler.quantize.ranges import random_samples
from compiler.reference import Kernels
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.dispatch.build import dispatched
from compiler.runtime.dispatch.skip import check_single, single, tensor_named
from compiler.runtime.program_text import with_texts
from compiler.runtime.stages import LayerInfo, Stage, control_of
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.trace import CompilationTrace
from hw.config import MlaConfig
from hw.errors import InputError


def build(
    graph: Graph, config: MlaConfig, options: CompileOptions, record: CompilationTrace | None = None
) -> CompiledNetwork:
    """Compile a graph for a hardware configuration; `record` collects the results of all stages.

    Raises
    ------
    InputError
        The model cannot be compiled, or the schedule is not legal for it.
    """
    record = record or CompilationTrace()

    def one(how: CompileOptions) -> CompiledNetwork:
        return ModelCompiler(graph, config, how, record).network(how.schedule, record)

    record.network = dispatched(options, one, record.streams)
    return record.network


class ModelCompiler:
    """Compiler of one model that can be run with several schedules.

    Parameters
    ----------
    graph : Graph
        Model as imported by the front end.
    config : MlaConfig
        Hardware configuration to compile for.
    options : Options
        Options of the compilation; their schedule is ignored.
    record : Record or None
        Collects the results of all stages.

    Raises
    ------
    InputError
        The model cannot be compiled.
    """

    def __init__(
        self, graph: Graph, config: MlaConfig, options: CompileOptions, record: CompilationTrace | None = None
    ):
        #: Full hardware configuration, and the one reduced to the memory limits.
        self.machine, self.config = config, options.limits.within(config)
        self.options, record = options, record or CompilationTrace()
        record.config, record.rounding = config, options.rounding
        record.graphs["imported"] = graph
        graph = name_apart(simplify(graph, record.graphs))
        self.report, why = None, obstacle(graph)
        if why is None:
            graph, self.report = _quantized(graph, options)
        elif options.calibration is not None:
            raise InputError(f"{graph.name} {why}; calibration is for float models")
        elif options.keep_float:
            raise InputError(f"{graph.name} {why}; keep_float is for float models")
        else:
            graph = chains_as_tables(graph, options.rounding)
        self.graph = with_batch(name_apart(graph), options.batch)
        record.graphs["quantized"] = self.graph
        self.skip = None if options.skip is None else tensor_named(self.graph, options.skip)
        self.parts, host = partition(self.graph, options.rounding, self.skip)
        if self.report is not None:
            host = {name: self.report.kept.get(name, reason) for name, reason in host.items()}
        else:
            host = left_float(self.graph, host)
        record.parts, record.host = self.parts, host
        self.host = _host(self.graph, host)
        if options.strict:
            check_strict(self.graph.name, self.host)
        self._device = [part.graph for part in parts_in(self.parts) if part.device]
        #: Fusions chosen by the heuristics.
        self.fusions = tuple(f for each in self._device for f in fuse_epilogues(each))
        self._lowered: dict[tuple[tuple[str, ...], ...], list[LoweredNetwork]] = {}
        self._makers: dict[int, LayerCodegen] = {}

    def __getstate__(self) -> dict[str, Any]:
        """State for pickling, without caches keyed by object identity."""
        return vars(self) | {"_lowered": {}, "_makers": {}}

    def lowered(self, fusions: tuple[tuple[str, ...], ...]) -> list[LoweredNetwork]:
        """Layers of each part on the accelerator for given fusions; cached.

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

    def maker(self, lowered: LoweredNetwork) -> LayerCodegen:
        """Code generator of a lowered network, which caches layer steps across schedules."""
        return self._makers.setdefault(id(lowered), LayerCodegen(self.config))

    def network(
        self, schedule: Schedule | None = None, record: CompilationTrace | None = None
    ) -> CompiledNetwork:
        """Compile the network with a schedule; None: the schedule chosen by the heuristics.

        Raises
        ------
        InputError
            The schedule is not legal for the model.
        """
        record = record or CompilationTrace()
        made = replace(_Compilation(self, schedule, record.streams).network(), batch=self.options.batch)
        self.options.limits.check(sum(code.memory for code in made.codes))
        return with_texts(made, schedule.programs) if schedule else made

    def _lower(self, graph: Graph, fusions: tuple[tuple[str, ...], ...]) -> LoweredNetwork:
        inside = [names for names in fusions if names[0] in graph.nodes]
        lowered = lower(graph, group(graph, inside), self.options.rounding)
        if lowered.refused:
            lines = "; ".join(f"{name}: {why}" for name, why in lowered.refused.items())
            raise InputError(f"schedule: its fusions are not possible: {lines}")
        return lowered


def _quantized(graph: Graph, options: CompileOptions) -> tuple[Graph, QuantizationReport]:
    """Quantize a float model, with random samples if there is no calibration data."""
    given = options.calibration
    samples = random_samples(graph, options.seed) if given is None else given
    made, report = quantize(
        graph,
        samples,
        skip=options.keep_float,
        rounding=cast(Kernels, options.rounding),
        random=given is None,
    )
    return simplify(made), report


def _host(graph: Graph, reasons: dict[str, str]) -> tuple[HostNode, ...]:
    """Nodes on the host in the order of the graph, including those of subgraphs."""
    edges, nodes = interface(graph, reasons), [node for _, node in graph.walk() if node.name in reasons]
    return tuple(HostNode(node.name, node.operator, reasons[node.name], node.name in edges) for node in nodes)


class _Compilation:
    """One compilation of a model with one schedule."""

    def __init__(self, prepared: ModelCompiler, schedule: Schedule | None, seen: list[CommandStream]):
        self.prepared, self.given, self.seen = prepared, schedule, seen
        self.config, self.options = prepared.config, prepared.options
        self.fusions = prepared.fusions if schedule is None else schedule.fusions
        parts = [part for part in parts_in(prepared.parts) if part.device]
        each = zip(parts, prepared.lowered(self.fusions), strict=True)
        self.lowered = {id(part): lowered for part, lowered in each}
        self.schedules: dict[str, LayerSchedule] = {}
        self.before = 0  # layers that have their code already
        self.traffic: list[
            tuple[LoweredNetwork, CompulsoryTraffic]
        ] = []  # of the stages that are in no subgraph

    def network(self) -> CompiledNetwork:
        """Compile all stages."""
        prepared, graph = self.prepared, self.prepared.graph
        count = sum(len(each.layers) for each in self.lowered.values())
        stages = self._stages(prepared.parts, count, inside=False)
        return CompiledNetwork(
            name=graph.name,
            config=prepared.machine,
            inputs=tuple(graph.tensors[n] for n in graph.inputs),
            outputs=tuple(graph.tensors[n] for n in graph.outputs),
            stages=stages,
            schedule=self.given or Schedule(self.fusions, self.schedules),
            host=prepared.host,
            rounding=self.options.rounding,
            floor=network_floor(self.traffic),
            graph=graph,
            layers=tuple(layer for each in self.lowered.values() for layer in each.layers),
            quantization=prepared.report,
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
            schedule, code = self._code(its, (self.before, count))
            self.schedules |= schedule.layers
            self.before += len(its.layers)
            traffic = compulsory_traffic(self.seen[-1])
            if not inside:
                self.traffic.append((its, traffic))
            code = replace(code, config=self.prepared.machine)
            alone = body_floor(its, traffic)
            spared = alone if [each.name for each in inputs] == [self.prepared.skip] else None
            stages.append(
                Stage(
                    inputs,
                    outputs,
                    code=code,
                    infos=_infos(its, code, traffic),
                    floor=alone if inside else None,
                    spared=spared,
                )
            )
        return tuple(stages)

    def _code(self, lowered: LoweredNetwork, numbers: tuple[int, int]) -> tuple[Schedule, StageExecutable]:
        offset, dram, maker = self.options.offset, self.options.dram, self.prepared.maker(lowered)
        if self.given is not None:
            code = generate(self.config, lowered, self.given, numbers, offset, self.seen, maker, dram)
            return self.given, code
        first = initial_schedule(self.config, lowered, self.fusions, dram)
        if not self.options.single:
            return fit(self.config, lowered, first, numbers, offset, self.seen, dram, maker)
        first = single(first, lowered, self.prepared.skip)
        schedule, code = fit(self.config, lowered, first, numbers, offset, self.seen, dram, maker)
        check_single(self.prepared.graph.name, code)
        return schedule, code


def _infos(
    lowered: LoweredNetwork, code: StageExecutable, traffic: CompulsoryTraffic
) -> tuple[LayerInfo, ...]:
    each = zip(lowered.layers, layer_floors(lowered, traffic), code.tags, code.program_names, strict=True)
    return tuple(
        LayerInfo(layer.nodes, layer.ops, floor, tag, program) for layer, floor, tag, program in each
    )
