"""Compile a model."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from compiler.codegen.making import Making
from compiler.codegen.network import Code, generate
from compiler.frontends.model import default_rounding, read_model
from compiler.host import Kernels
from compiler.ir.graph import Graph
from compiler.lower.groups import find_fusions, group
from compiler.lower.lower import ROUNDINGS, Lowered, lower
from compiler.lower.partition import Part, partition
from compiler.network import Body, Control, HostNode, LayerInfo, Network, Stage
from compiler.passes import simplify
from compiler.passes.names import name_apart
from compiler.profile.floors import body_floor, layer_floor, network_floor
from compiler.quantize import QuantizationReport, quantize
from compiler.quantize.quantize import is_float
from compiler.quantize.samples import RANDOM_SAMPLES, Calibration, random_samples
from compiler.record import Record
from compiler.schedule.fit import fit
from compiler.schedule.heuristic import first_schedule
from compiler.schedule.schedule import LayerSchedule, Schedule
from hw.config import MlaConfig, load_target
from hw.errors import InputError, shown

_log = logging.getLogger(__name__)


def compile(
    model: Path | str | Graph | Any,
    target: str | MlaConfig = "n16",
    *,
    rounding: str | None = None,
    schedule: Schedule | None = None,
    strict: bool = False,
    calibration: Calibration | None = None,
    example: Any = None,
    dynamic_shapes: Any = None,
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
    offset: int = 0,
    record: Record | None = None,
) -> Network:
    """Compile a model for a machine.

    Parameters
    ----------
    model : path, Graph, torch.nn.Module or torch.export.ExportedProgram
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
        Refuse a model of which a node must run on the host.
    calibration : Calibration or None
        Samples of the inputs of a float model, which is quantized with them: a dict of arrays whose first axis counts
        samples, or a list of samples. Without any, random numbers are taken: the accuracy is not to be trusted then.
    example : tensor, array, tuple of them, or dict of them by name
        Inputs with which a PyTorch module is exported: their shapes are those of the network.
    dynamic_shapes : as torch.export.export has it
        Dimensions that its export leaves open.
    sizes : dict
        Sizes of dimensions that an ONNX file only names, or that are open; a first one that is not named is 1.
    seed : int
        Of these random numbers.
    offset : int
        Bytes at the start of the model's memory (of each stage's) that belong to other code: two can then share it.
    record : Record or None
        Takes what every stage made.

    Raises
    ------
    InputError
        The model cannot be read or compiled, or the schedule is not legal for it.
    """
    rounding = default_rounding(model) if rounding is None else rounding
    if rounding not in ROUNDINGS:
        raise InputError(f"rounding must be {' or '.join(ROUNDINGS)}, not {shown(rounding)}")
    config = load_target(target) if isinstance(target, str) else target
    record = record or Record()
    record.config, record.rounding = config, rounding
    if not isinstance(model, Graph):
        model = read_model(model, sizes, example=example, dynamic_shapes=dynamic_shapes)
    record.graphs["imported"] = model
    graph = name_apart(simplify(model, record.graphs))
    report = None
    if is_float(graph):
        graph, report = _quantized(graph, calibration, rounding, seed)
    elif calibration is not None:
        raise InputError(f"{graph.name} is quantized already: calibration is for float models")
    graph = name_apart(graph)
    record.graphs["quantized"] = graph
    parts, host = partition(graph, rounding)
    if report is not None:
        host = {name: report.kept.get(name, why) for name, why in host.items()}
    record.parts, record.host = parts, host
    if host and strict:
        ops = {node.name: node.op for _, node in graph.walk()}
        lines = "; ".join(f"{name} ({ops[name]}): {why}" for name, why in host.items())
        raise InputError(f"{graph.name}: not for the accelerator: {lines}")
    compilation = _Compilation(config, graph, parts, rounding, schedule, offset, record.makings)
    record.network = compilation.network(host, report)
    return record.network


def _quantized(
    graph: Graph, calibration: Calibration | None, rounding: str, seed: int
) -> tuple[Graph, QuantizationReport]:
    """A float model quantized, with made-up samples if there are none."""
    if calibration is None:
        _log.warning(
            "%s is quantized with %d random samples of seed %d: its accuracy is not to be trusted; give "
            "calibration data of its own", graph.name, RANDOM_SAMPLES, seed,
        )  # fmt: skip
    samples = random_samples(graph, seed) if calibration is None else calibration
    made, report = quantize(graph, samples, rounding=cast(Kernels, rounding), random=calibration is None)
    _log.info("%s", report)
    return simplify(made), report


class _Compilation:
    """The stages of one model on their way to code."""

    def __init__(
        self,
        config: MlaConfig,
        graph: Graph,
        parts: list[Part],
        rounding: str,
        schedule: Schedule | None,
        offset: int,
        seen: list[Making],
    ):
        self.config, self.graph, self.parts, self.rounding = config, graph, parts, rounding
        self.given, self.offset, self.seen = schedule, offset, seen
        self.schedules: dict[str, LayerSchedule] = {}
        self.before = 0  # layers that have their code already
        device = [part.graph for part in _walk(parts) if part.device]
        self.fusions = tuple(f for each in device for f in find_fusions(each))
        if schedule is not None:
            self.fusions = schedule.fusions
            known = {name for each in device for name in each.nodes}
            for name in (name for names in self.fusions for name in names):
                if name not in known:
                    raise InputError(
                        f"schedule: fusion of {name!r}: there is no such node on the accelerator"
                    )

    def network(self, host: dict[str, str], report: QuantizationReport | None) -> Network:
        """Everything compiled."""
        self.lowered = {id(part): self._lower(part.graph) for part in _walk(self.parts) if part.device}
        count = sum(len(each.layers) for each in self.lowered.values())
        stages = self._stages(self.parts, count, inside=False)
        graph, ops = self.graph, {node.name: node.op for _, node in self.graph.walk()}
        top = [layer for part in self.parts if part.device for layer in self.lowered[id(part)].layers]
        return Network(
            name=graph.name, config=self.config, inputs=tuple(graph.tensors[n] for n in graph.inputs),
            outputs=tuple(graph.tensors[n] for n in graph.outputs), stages=stages,
            schedule=self.given or Schedule(self.fusions, self.schedules),
            host=tuple(HostNode(name, ops[name], why) for name, why in host.items()),
            rounding=self.rounding, floor=network_floor(graph, top), graph=graph,
            layers=tuple(layer for each in self.lowered.values() for layer in each.layers), quantization=report,
        )  # fmt: skip

    def _stages(self, parts: Sequence[Part], count: int, *, inside: bool) -> tuple[Stage, ...]:
        """Stages of the model, or `inside` of a subgraph; `count` layers are in all of them."""
        stages: list[Stage] = []
        for part in parts:
            graph, its = part.graph, self.lowered.get(id(part))
            inputs, outputs = (
                tuple(graph.tensors[n] for n in names) for names in (graph.inputs, graph.outputs)
            )
            if part.bodies:
                bodies = [self._stages(body, count, inside=True) for body in part.bodies]
                stages.append(Stage(inputs, outputs, control=_control(graph, bodies)))
                continue
            if its is None:
                stages.append(Stage(inputs, outputs, graph=graph))
                continue
            schedule, code = self._code(its, (self.before, count))
            self.schedules |= schedule.layers
            self.before += len(its.layers)
            floor = body_floor(graph, its.layers) if inside else None
            stages.append(Stage(inputs, outputs, code=code, infos=self._infos(its, code), floor=floor))
        return tuple(stages)

    def _infos(self, lowered: Lowered, code: Code) -> tuple[LayerInfo, ...]:
        return tuple(
            LayerInfo(layer.nodes, layer.ops, layer_floor(lowered.graph, layer), tag, program)
            for layer, tag, program in zip(lowered.layers, code.tags, code.program_names, strict=True)
        )

    def _lower(self, graph: Graph) -> Lowered:
        inside = [names for names in self.fusions if names[0] in graph.nodes]
        lowered = lower(graph, group(graph, inside), self.rounding)
        if lowered.refused:
            lines = "; ".join(f"{name}: {why}" for name, why in lowered.refused.items())
            raise InputError(f"schedule: its fusions cannot be carried out: {lines}")
        return lowered

    def _code(self, lowered: Lowered, numbers: tuple[int, int]) -> tuple[Schedule, Code]:
        if self.given is not None:
            return self.given, generate(self.config, lowered, self.given, numbers, self.offset, self.seen)
        first = first_schedule(self.config, lowered, self.fusions)
        return fit(self.config, lowered, first, numbers, self.offset, self.seen)


def _walk(parts: Iterable[Part]) -> Iterator[Part]:
    """All parts, those of subgraphs among them."""
    for part in parts:
        yield part
        for body in part.bodies:
            yield from _walk(body)


def _control(graph: Graph, stages: Sequence[tuple[Stage, ...]]) -> Control:
    """The one node of a part that is control flow."""
    (node,) = graph
    bodies = (
        Body(
            tuple(body.tensors[n] for n in body.inputs), tuple(body.tensors[n] for n in body.outputs), inside
        )
        for body, inside in zip(node.bodies, stages, strict=True)
    )
    outputs = tuple(graph.tensors[n] for n in node.outputs)
    return Control(node.name, node.op, node.attributes, tuple(graph.ins(node)), outputs, tuple(bodies))
