"""Reader of `.mla` files, which are untrusted: every field that a session needs is checked."""

import json
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.codegen.buffer_allocation import Peak
from compiler.codegen.dispatch_guard import Guard, GuardedProgram
from compiler.codegen.executable import Regions, StageExecutable
from compiler.codegen.split_programs import ProgramPart
from compiler.cost.roofline import Floor
from compiler.ir.control import mismatch
from compiler.ir.graph import Graph, GraphState, Node
from compiler.ir.identity import restored
from compiler.ir.ops import KINDS, OPS
from compiler.ir.tensor import Quantization, Tensor
from compiler.layers.lowering_context import layer_name
from compiler.lowering.partition import HostNode
from compiler.passes.kernel_sizes import Rewritten
from compiler.passes.redundant_nodes import Removed
from compiler.quantize.report import QuantizationReport
from compiler.reference.evaluate import check_node
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.stages import (
    CONVERSIONS,
    BatchVariant,
    Body,
    Control,
    LayerInfo,
    NetworkLengths,
    NetworkState,
    Stage,
)
from compiler.schedule.schedule import Schedule
from compiler.util.checks import MAX_LENGTHS
from hw.config import MlaConfig
from hw.isa.enums import Compare
from hw.isa.micro_instruction import MAX_OPERANDS
from hw.isa.program import Program


def typed(value: Any, kind: type, what: str) -> Any:
    """Check the type of a value; `what` names the value in the error message."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        raise ValueError(f"{what} must be {kind.__name__}")
    return value


def same(made: Tensor, used: Tensor) -> None:
    """Check that two descriptions of a tensor agree."""
    one, other = (f"{t.name!r} of {t.dtype}{list(t.shape)}" for t in (made, used))
    if one != other:
        raise ValueError(f"{one} is used as {other}")


def by_name(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Sort tensors by name."""
    return sorted(tensors, key=lambda tensor: tensor.name)


def tuples(value: Any) -> Any:
    """Convert nested JSON lists to tuples."""
    return tuple(tuples(each) for each in value) if isinstance(value, list) else value


FORMAT, VERSION = "mla network", 5
#: Earlier version, which is read as well: a network without states.
_WITHOUT_STATES = 4
#: Name of the archive's member with everything except programs, images and constants.
MANIFEST = "manifest.json"


class PackageReader:
    """Reader of a network from a ZIP archive."""

    def __init__(self, archive: zipfile.ZipFile):
        self.archive = archive
        for info in archive.infolist():
            if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
                raise ValueError(f"member {info.filename!r} is compressed")
        self.manifest = json.loads(archive.read(MANIFEST))
        head = (self.manifest["format"], self.manifest["version"])
        if head not in ((FORMAT, VERSION), (FORMAT, _WITHOUT_STATES)):
            raise ValueError(f"must be {FORMAT!r} version {VERSION}, not {head[0]!r} version {head[1]!r}")

    def network(self) -> CompiledNetwork:
        """Read the whole network; raise one of the exceptions in `writer._DAMAGE` if it is damaged."""
        m = self.manifest
        self.config = restored(MlaConfig, m["config"])
        inputs = self._tensors(m["inputs"])
        outputs = self._with_contents("output", m["outputs"])
        states = self._states([] if m["version"] == _WITHOUT_STATES else m["states"])
        smaller = self._smaller(m["smaller"], m["batch"])
        given = m.get("lengths")  # absent in older files
        longest = [] if given is None else given["longest"]
        self.sizes = len(smaller) or max(len(longest) - 1, 0)
        network = CompiledNetwork(
            name=typed(m["name"], str, "name"),
            config=self.config,
            inputs=inputs,
            outputs=outputs,
            stages=self._stages(
                "",
                m["stages"],
                (*inputs, *(state.input for state in states)),
                (*outputs, *(state.output for state in states)),
            ),
            schedule=Schedule.from_json(json.dumps(m["schedule"])),
            host=tuple(self._host(each) for each in m["host"]),
            removed=tuple(self._removed(each) for each in m.get("removed", ())),  # absent in older files
            rewritten=tuple(self._rewritten(each) for each in m.get("rewritten", ())),
            rounding=typed(m["rounding"], str, "rounding"),
            floor=self._floor(m["floor"]),
            batch=self._batch(m["batch"]),
            smaller=smaller,
            states=states,
            graph=self._whole_graph(states) if m["graph"] else None,
            quantization=QuantizationReport.from_document(m["quantization"]) if m["quantization"] else None,
        )
        return network if given is None else replace(network, lengths=self._lengths(given, network))

    def _lengths(self, values: dict, network: CompiledNetwork) -> NetworkLengths:
        """Read the lengths for which the network has programs, and check that their shapes and operands are possible.

        That the programs are safe with these operands is proved before they run.
        """

        def numbers(each: Any, what: str, least: int = 0) -> tuple[int, ...]:
            found = tuple(typed(number, int, what) for number in typed(each, list, what))
            if any(not least <= number < 1 << 32 for number in found):
                raise ValueError(f"{what} must be {least}..2**32-1")
            return found

        lengths = numbers(values["values"], "a length", 1)
        longest = numbers(values["longest"], "a longest length", 1)
        for ascending in (lengths, longest):
            if not ascending or any(one >= other for one, other in pairwise(ascending)):
                raise ValueError("lengths must ascend")
        if len(lengths) > MAX_LENGTHS or longest[-1] != lengths[-1] or not set(longest) <= set(lengths):
            raise ValueError(
                f"there must be at most {MAX_LENGTHS} lengths, the last of them for the last program"
            )
        if network.batch != 1 or network.states or any(stage.control for stage in network.stages):
            raise ValueError("a network for several lengths cannot have batches, states or control flow")
        coded = [stage for stage in network.stages if stage.code]
        if len(coded) != 1:
            raise ValueError(f"a network for several lengths must have one stage, not {len(coded)}")
        operands = tuple(numbers(each, "an operand", -(1 << 31)) for each in values["operands"])
        count = 1 + len(coded[0].inputs) + len(coded[0].outputs)
        sizes = {len(each) for each in operands}
        if len(operands) != len(lengths) or len(sizes) != 1 or not 1 <= min(sizes) <= MAX_OPERANDS - count:
            raise ValueError("each length must have the same number of operands, at least one")
        if any(each[0] != length for each, length in zip(operands, lengths, strict=True)):
            raise ValueError("the first operand of each length must be the length")
        growth = tuple((name, numbers(each, "growth")) for name, each in values["growth"].items())
        floors = tuple(tuple(self._work(each) for each in floors) for floors in values["floors"])
        if len(floors) != len(lengths) or {len(each) for each in floors} != {1 + len(coded[0].infos)}:
            raise ValueError("each length must have the work of the network and of each layer")
        made = NetworkLengths(typed(values["name"], str, "name"), lengths, operands, growth, floors, longest)
        known = dict(growth)
        for stage in network.stages:
            for node in stage.graph or ():
                ends = (
                    [stage.graph.tensors[name] for name in (node.inputs[0], *node.outputs)]
                    if stage.graph
                    else []
                )
                if (
                    node.op not in CONVERSIONS
                    or len({(each.shape, known.get(each.name)) for each in ends}) != 1
                ):
                    raise ValueError(
                        f"node {node.name!r} of a network for several lengths cannot run on the host"
                    )
            inside = stage.graph.tensors.values() if stage.graph else ()
            for tensor in (*network.inputs, *network.outputs, *stage.inputs, *stage.outputs, *inside):
                if tensor.data is None and len(known[tensor.name]) != len(tensor.shape):
                    raise ValueError(f"the growth of {tensor.name!r} does not fit its shape")
        network = replace(network, lengths=made)
        network.at(lengths[0])  # raises ValueError if a size is not positive
        return made

    def _work(self, values: list) -> Floor:
        macs, size, skipped = (typed(each, int, "work") for each in values)
        return Floor(macs, size, skipped)

    def _whole_graph(self, states: Sequence[NetworkState]) -> Graph:
        graph = self._graph("graph", self.manifest["graph"])
        return graph.keep(GraphState(each.input.name, each.output.name, each.initial) for each in states)

    def _states(self, values: list) -> tuple[NetworkState, ...]:
        """Read the states; the input, the output and the initial contents of a state have the same shape and type."""
        inputs = self._tensors([each["input"] for each in values])
        outputs = self._with_contents("state_output", [each["output"] for each in values])
        states = []
        for number, (given, made) in enumerate(zip(inputs, outputs, strict=True)):
            if (given.shape, given.dtype) != (made.shape, made.dtype):
                raise ValueError(f"state {given.name!r} changes its shape or type")
            initial = self._constant(f"state{number}.bin", values[number]["input"]).data
            states.append(NetworkState(given, made, np.asarray(initial)))
        names = [tensor.name for tensor in (*self._tensors(self.manifest["inputs"]), *inputs)]
        if len(set(names)) < len(names):
            raise ValueError("two inputs or states have the same name")
        if states and self.manifest["batch"] != 1:
            raise ValueError("a network with states cannot have batches")
        return tuple(states)

    def _host(self, values: dict) -> HostNode:
        texts = (typed(values[key], str, key) for key in ("node", "op", "reason"))
        return HostNode(*texts, edge=typed(values["edge"], bool, "edge"))

    def _removed(self, values: dict) -> Removed:
        node, op, reason = (typed(values[key], str, key) for key in ("node", "op", "reason"))
        counts = [values[key] for key in ("channels", "removed")]
        if counts == [None, None]:
            return Removed(node, op, reason)
        channels, removed = (typed(each, int, "channels") for each in counts)
        if not 0 < removed <= channels:
            raise ValueError(f"{removed} of {channels} channels cannot be removed")
        return Removed(node, op, reason, channels, removed)

    def _rewritten(self, values: dict) -> Rewritten:
        node, op, name, change = (typed(values[key], str, key) for key in ("node", "op", "pass", "change"))
        bound = typed(values["bound"], int, "bound") if "bound" in values else None
        return Rewritten(node, op, name, change, bound)

    def _batch(self, value: Any) -> int:
        """Check the batch size, which must divide the first dimension of every input and output."""
        shapes = [each["shape"] for key in ("inputs", "outputs") for each in self.manifest[key]]
        if typed(value, int, "batch") < 1 or (value > 1 and any(not s or s[0] % value for s in shapes)):
            raise ValueError(f"a batch of {value} does not fit the inputs and outputs")
        return value

    def _smaller(self, values: list, batch: int) -> tuple[BatchVariant, ...]:
        """Read the variants for smaller batches, in ascending order."""
        made = tuple(
            BatchVariant(
                typed(each["batch"], int, "batch"),
                self._floor(each["floor"]),
                tuple(self._info(info) for info in each["infos"]),
            )
            for each in values
        )
        sizes = [0, *(each.batch for each in made), batch]
        if any(one >= other for one, other in pairwise(sizes)):
            raise ValueError(f"sizes of batches must ascend, not be {sizes[1:]}")
        return made

    def _floor(self, values: dict) -> Floor:
        return Floor(
            typed(values["macs"], int, "macs"),
            typed(values["bytes"], int, "bytes"),
            typed(values.get("skipped", 0), int, "skipped"),
        )

    def _tensors(self, values: list) -> tuple[Tensor, ...]:
        return tuple(self._tensor(each) for each in values)

    def _tensor(self, values: dict, data: NDArray | None = None) -> Tensor:
        shape = tuple(typed(size, int, "a dimension") for size in values["shape"])
        q = values["quantization"]
        if q is not None:
            scale, zero, axis = q
            q = Quantization(tuple(float(s) for s in scale), tuple(typed(z, int, "zero") for z in zero), axis)
        name = typed(values["name"], str, "name")
        return Tensor(name, shape, np.dtype(typed(values["dtype"], str, "dtype")).name, q, data)

    def _with_contents(self, folder: str, values: list) -> tuple[Tensor, ...]:
        """Read tensors, some of which are constants with contents."""
        return tuple(
            self._constant(f"{folder}{number}.bin", each) if each["constant"] else self._tensor(each)
            for number, each in enumerate(values)
        )

    def _constant(self, member: str, values: dict) -> Tensor:
        empty = self._tensor(values)
        raw = np.frombuffer(self.archive.read(member), np.dtype(empty.dtype).newbyteorder("<"))
        return self._tensor(values, raw.astype(empty.dtype).reshape(empty.shape))

    def _stages(
        self, folder: str, values: list, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> tuple[Stage, ...]:
        """Read the stages of the network or of a subgraph; inputs of a stage must come from earlier ones."""
        stages = tuple(self._stage(f"{folder}stage{i}", each) for i, each in enumerate(values))
        known = {tensor.name: tensor for tensor in inputs}
        for wanted, made in [*((stage.inputs, stage.outputs) for stage in stages), (outputs, ())]:
            for tensor in wanted:
                if tensor.name in known:
                    same(known[tensor.name], tensor)
                elif not tensor.constant:
                    raise ValueError(f"{folder}: no stage computes {tensor.name!r}")
            known |= {tensor.name: tensor for tensor in made}
        return stages

    def _control(self, folder: str, values: dict) -> Control:
        name, op, spec = typed(values["name"], str, "name"), values["op"], OPS[values["op"]]
        attributes = {key: tuples(value) for key, value in values["attributes"].items()}
        if (
            attributes.keys() != spec.attributes.keys()
            or len(values["bodies"]) != len(spec.bodies)
            or not spec.bodies
        ):
            raise ValueError(f"{folder}: {op!r} is not a complete control-flow operator")
        for key, kind in spec.attributes.items():
            if not KINDS[kind][0](attributes[key]):
                raise ValueError(f"{folder}: {key} must be {KINDS[kind][1]}")
        operands = self._with_contents(f"{folder}/operand", values["operands"])
        made = self._with_contents(f"{folder}/output", values["outputs"])
        bodies = []
        for i, each in enumerate(values["bodies"]):
            inputs, inner = self._tensors(each["inputs"]), f"{folder}/body{i}/"
            outputs = self._with_contents(f"{inner}output", each["outputs"])
            bodies.append(Body(inputs, outputs, self._stages(inner, each["stages"], inputs, outputs)))
        wrong = mismatch(op, attributes, operands, [(body.inputs, body.outputs) for body in bodies], made)
        if wrong:
            raise ValueError(f"{folder}: {wrong}")
        return Control(name, op, attributes, operands, made, tuple(bodies))

    def _stage(self, folder: str, values: dict) -> Stage:
        inputs, outputs = self._tensors(values["inputs"]), self._tensors(values["outputs"])
        if "control" in values:
            return Stage(inputs, outputs, control=self._control(folder, values["control"]))
        if "graph" in values:
            graph = self._graph(folder, values["graph"])
            for outer, inner in zip((inputs, outputs), graph.ends, strict=True):
                for tensor, other in zip(by_name(outer), by_name(inner), strict=True):
                    same(other, tensor)
            return Stage(inputs, outputs, graph=graph)
        code = values["code"]
        parts = tuple(
            self._part(f"{folder}/program{i}", layers, guards)
            for i, (layers, guards) in enumerate(zip(code["layers"], code["guards"], strict=True))
        )
        image = np.frombuffer(bytearray(self.archive.read(f"{folder}/image.bin")), np.uint8)
        tags = tuple(typed(tag, int, "tag") for tag in code["tags"])
        memory = typed(code["memory"], int, "memory")
        if not (
            image.size <= memory < 1 << 32 and all(0 <= tag < self.config.tags for tag in tags) and parts
        ):
            raise ValueError(f"{folder}: memory, tags or programs out of range")
        names = [tensor.name for tensor in (*inputs, *outputs)]
        places = {name: typed(code["places"][name], int, "place") for name in names}
        if not all(1 <= place <= len(names) for place in places.values()):
            raise ValueError(f"{folder}: the operand index of an input or output is out of range")
        infos = tuple(self._info(each) for each in code["infos"])
        floor, spared = (None if code[key] is None else self._floor(code[key]) for key in ("floor", "spared"))
        regions = self._regions(code.get("regions"))
        if len(parts[-1].instead) != (self.sizes or (spared is not None and regions is None)):
            raise ValueError(
                f"{folder}: {len(parts[-1].instead)} guards do not match the variants of the network"
            )
        mutable = typed(code.get("mutable", 0), int, "mutable")
        if not 0 <= mutable <= image.size:
            raise ValueError(f"{folder}: {mutable} bytes of a memory image of {image.size} cannot be mutable")
        peak = self._peak(code.get("peak"))
        made = StageExecutable(self.config, parts, tags, image, memory, places, peak, mutable, regions)
        return Stage(inputs, outputs, code=made, infos=infos, floor=floor, spared=spared)

    def _peak(self, values: dict | None) -> Peak | None:
        """Read the peak use of the on-chip memories, which is optional in files."""
        if values is None:
            return None
        sp, acc = (typed(values[key], int, f"peak of {key}") for key in ("sp", "acc"))
        if not (0 <= sp <= self.config.sp_bytes and 0 <= acc <= self.config.acc_bytes):
            raise ValueError("peak exceeds the size of the memory")
        return Peak(sp, acc)

    def _regions(self, values: dict | None) -> Regions | None:
        """Read the parts of an image that a program can compute."""
        if values is None:
            return None
        size, *windows = (
            (typed(height, int, "height"), typed(width, int, "width"))
            for height, width in (values["image"], *values["windows"])
        )
        base, modulus = (typed(values[key], int, key) for key in ("base", "modulus"))
        if not 0 <= base < modulus or not windows:
            raise ValueError("regions are out of range")
        return Regions(size, tuple(windows), base, modulus)

    def _part(self, member: str, layers: list, guards: list) -> ProgramPart:
        """Read a program with its guarded alternatives."""
        instead = tuple(
            GuardedProgram(
                Guard(Compare(typed(each["compare"], int, "compare")), each["selector"], each["value"]),
                Program.from_bytes(self.archive.read(f"{member}.{i}.mlap")),
            )
            for i, each in enumerate(guards)
        )
        if len(instead) >= self.config.candidates:
            raise ValueError(f"{member}: an opcode has at most {self.config.candidates} candidates")
        program = Program.from_bytes(self.archive.read(f"{member}.mlap"))
        return ProgramPart(program, tuple(typed(layer, int, "layer") for layer in layers), instead)

    def _info(self, values: dict) -> LayerInfo:
        nodes, ops = (tuple(typed(v, str, key) for v in values[key]) for key in ("nodes", "ops"))
        tag = typed(values["tag"], int, "tag")
        if not 0 <= tag < self.config.tags:
            raise ValueError(f"tag must be in 0..{self.config.tags - 1}, not {tag}")
        name = typed(values["name"], str, "name") if "name" in values else layer_name(nodes, ops)
        if name not in nodes:
            raise ValueError(f"the name of a layer must be one of its nodes, not {name!r}")
        program, shape = (typed(values.get(key, ""), str, key) for key in ("program", "shape"))
        return LayerInfo(name, nodes, ops, self._floor(values["floor"]), tag, program, shape)

    def _graph(self, folder: str, values: dict) -> Graph:
        graph = Graph(typed(values["name"], str, "name"))
        inputs = [typed(name, str, "input") for name in values["inputs"]]
        tensors = {tensor.name: tensor for tensor in self._tensors(values["tensors"])}
        for number, each in enumerate(values["constants"]):
            constant = self._constant(f"{folder}/constant{number}.bin", each)
            tensors[constant.name] = constant
        for name in inputs:
            graph.add_input(tensors.pop(name))
        for tensor in tensors.values():
            graph.add_tensor(tensor)
        for i, (name, op, ins, outs, attributes, bodies) in enumerate(values["nodes"]):
            if op not in OPS:
                raise ValueError(f"there is no operator {op!r}")
            inner = tuple(self._graph(f"{folder}/node{i}/body{j}", body) for j, body in enumerate(bodies))
            made = {key: tuples(value) for key, value in attributes.items()}
            graph.add_node(Node(name, op, tuple(ins), tuple(outs), made, inner))
        for node in graph.nodes.values():
            if node.op == "onnx":
                check_node(node, graph.ins(node), [graph.out(node)])
        order = [typed(name, str, "name of a tensor") for name in values.get("order", graph.tensors)]
        if len(order) != len(graph.tensors) or set(order) != graph.tensors.keys():
            raise ValueError("the order of the tensors does not name each of them once")
        graph.tensors = {name: graph.tensors[name] for name in order}
        return graph.finish([typed(name, str, "output") for name in values["outputs"]])
