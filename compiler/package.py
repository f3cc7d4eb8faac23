"""Compiled networks as files: an uncompressed ZIP archive of a JSON manifest, programs, memory images and constants."""

import io
import json
import struct
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.codegen.network import Code
from compiler.codegen.programs import Part
from compiler.ir.graph import Graph, Node
from compiler.ir.ops import OPS
from compiler.ir.tensor import Quantization, Tensor
from compiler.network import HostNode, LayerInfo, Network, Stage
from compiler.profile.floors import Floor
from compiler.schedule.schedule import Schedule
from hw.config import MlaConfig
from hw.errors import InputError
from hw.isa.program import Program

SUFFIX = ".mla"
FORMAT, VERSION = "mla network", 1
#: What reading a damaged archive or manifest raises.
_DAMAGE = (
    zipfile.BadZipFile, KeyError, ValueError, TypeError, IndexError, AttributeError, struct.error, EOFError,
    RuntimeError, OverflowError, MemoryError,  # RuntimeError: encrypted members, methods that zipfile lacks
)  # fmt: skip


def to_bytes(network: Network) -> bytes:
    """Contents of a file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:

        def put(name: str, data: bytes | str) -> None:
            archive.writestr(zipfile.ZipInfo(name), data)  # a date would make every file different

        stages = [_stage(put, f"stage{i}", stage) for i, stage in enumerate(network.stages)]
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "name": network.name,
            "config": asdict(network.config),
            "rounding": network.rounding,
            "inputs": [_tensor(tensor) for tensor in network.inputs],
            "outputs": [_tensor(tensor) for tensor in network.outputs],
            "host": [asdict(each) for each in network.host],
            "floor": asdict(network.floor),
            "schedule": json.loads(network.schedule.to_json()),
            "stages": stages,
        }
        put("manifest.json", json.dumps(manifest, indent=1))
    return buffer.getvalue()


def read_package(path: Path) -> Network:
    """The network of a compiled file.

    Raises
    ------
    InputError
        The file cannot be read or is damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _Reader(archive).network()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except InputError as error:
        raise InputError(f"{path}: damaged compiled network: {error}") from None
    except _DAMAGE as error:
        reason = f"{type(error).__name__} {error}".strip()
        raise InputError(f"{path}: damaged compiled network: {reason}") from None


_Put = Callable[[str, bytes | str], None]


def _stage(put: _Put, folder: str, stage: Stage) -> dict[str, Any]:
    out: dict[str, Any] = {
        "inputs": [_tensor(tensor) for tensor in stage.inputs],
        "outputs": [_tensor(tensor) for tensor in stage.outputs],
    }
    if stage.code:
        code = stage.code
        for number, part in enumerate(code.parts):
            put(f"{folder}/program{number}.mlap", part.program.to_bytes())
        put(f"{folder}/image.bin", code.image.tobytes())
        out["code"] = {
            "layers": [part.layers for part in code.parts], "tags": code.tags, "memory": code.memory,
            "places": code.places, "infos": [asdict(info) for info in stage.infos],
        }  # fmt: skip
    if stage.graph:
        out["graph"] = _graph(put, folder, stage.graph)
    return out


def _graph(put: _Put, folder: str, graph: Graph) -> dict[str, Any]:
    constants = [tensor for tensor in graph.tensors.values() if tensor.data is not None]
    for number, tensor in enumerate(constants):
        assert tensor.data is not None
        put(
            f"{folder}/constant{number}.bin",
            tensor.data.astype(tensor.data.dtype.newbyteorder("<")).tobytes(),
        )
    return {
        "name": graph.name,
        "tensors": [_tensor(tensor) for tensor in graph.tensors.values() if tensor.data is None],
        "constants": [_tensor(tensor) for tensor in constants],
        "nodes": [[n.name, n.op, n.inputs, n.outputs, n.attributes] for n in graph],
        "inputs": graph.inputs,
        "outputs": graph.outputs,
    }


def _tensor(tensor: Tensor) -> dict[str, Any]:
    q = tensor.quantization
    return {
        "name": tensor.name, "shape": tensor.shape, "dtype": tensor.dtype,
        "quantization": None if q is None else [q.scale, q.zero_point, q.axis],
    }  # fmt: skip


def _typed(value: Any, kind: type, what: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        raise ValueError(f"{what} must be {kind.__name__}")
    return value


class _Reader:
    """One archive on its way to a network."""

    def __init__(self, archive: zipfile.ZipFile):
        self.archive = archive
        for info in archive.infolist():
            if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
                raise ValueError(f"member {info.filename!r} is compressed")
        self.manifest = json.loads(archive.read("manifest.json"))
        head = (self.manifest["format"], self.manifest["version"])
        if head != (FORMAT, VERSION):
            raise ValueError(f"must be {FORMAT!r} version {VERSION}, not {head[0]!r} version {head[1]!r}")

    def network(self) -> Network:
        m = self.manifest
        self.config = MlaConfig(**m["config"])
        return Network(
            name=_typed(m["name"], str, "name"), config=self.config,
            inputs=self._tensors(m["inputs"]), outputs=self._tensors(m["outputs"]),
            stages=tuple(self._stage(f"stage{i}", each) for i, each in enumerate(m["stages"])),
            schedule=Schedule.from_json(json.dumps(m["schedule"])),
            host=tuple(HostNode(**{k: _typed(v, str, k) for k, v in each.items()}) for each in m["host"]),
            rounding=_typed(m["rounding"], str, "rounding"), floor=self._floor(m["floor"]),
        )  # fmt: skip

    def _floor(self, values: dict) -> Floor:
        return Floor(_typed(values["macs"], int, "macs"), _typed(values["bytes"], int, "bytes"))

    def _tensors(self, values: list) -> tuple[Tensor, ...]:
        return tuple(self._tensor(each) for each in values)

    def _tensor(self, values: dict, data: NDArray | None = None) -> Tensor:
        shape = tuple(_typed(size, int, "a dimension") for size in values["shape"])
        q = values["quantization"]
        if q is not None:
            scale, zero, axis = q
            q = Quantization(
                tuple(float(s) for s in scale), tuple(_typed(z, int, "zero") for z in zero), axis
            )
        name = _typed(values["name"], str, "name")
        return Tensor(name, shape, np.dtype(_typed(values["dtype"], str, "dtype")).name, q, data)

    def _stage(self, folder: str, values: dict) -> Stage:
        inputs, outputs = self._tensors(values["inputs"]), self._tensors(values["outputs"])
        if "graph" in values:
            return Stage(inputs, outputs, graph=self._graph(folder, values["graph"]))
        code = values["code"]
        parts = tuple(
            Part(
                Program.from_bytes(self.archive.read(f"{folder}/program{i}.mlap")),
                tuple(_typed(layer, int, "layer") for layer in layers),
            )
            for i, layers in enumerate(code["layers"])
        )
        image = np.frombuffer(self.archive.read(f"{folder}/image.bin"), np.uint8)
        tags = tuple(_typed(tag, int, "tag") for tag in code["tags"])
        memory = _typed(code["memory"], int, "memory")
        if not (
            image.size <= memory < 1 << 32 and all(0 <= tag < self.config.tags for tag in tags) and parts
        ):
            raise ValueError(f"{folder}: memory, tags or programs out of range")
        names = [tensor.name for tensor in (*inputs, *outputs)]
        places = {name: _typed(code["places"][name], int, "place") for name in names}
        if not all(1 <= place <= len(names) for place in places.values()):
            raise ValueError(f"{folder}: a place of an input or output is none")
        infos = tuple(self._info(each) for each in code["infos"])
        return Stage(inputs, outputs, code=Code(self.config, parts, tags, image, memory, places), infos=infos)

    def _info(self, values: dict) -> LayerInfo:
        nodes, ops = (tuple(_typed(v, str, key) for v in values[key]) for key in ("nodes", "ops"))
        tag = _typed(values["tag"], int, "tag")
        if not 0 <= tag < self.config.tags:
            raise ValueError(f"tag must be in 0..{self.config.tags - 1}, not {tag}")
        return LayerInfo(
            nodes, ops, self._floor(values["floor"]), tag, _typed(values["program"], str, "program")
        )

    def _graph(self, folder: str, values: dict) -> Graph:
        graph = Graph(_typed(values["name"], str, "name"))
        inputs = [_typed(name, str, "input") for name in values["inputs"]]
        tensors = {tensor.name: tensor for tensor in self._tensors(values["tensors"])}
        for number, each in enumerate(values["constants"]):
            empty = self._tensor(each)
            raw = np.frombuffer(
                self.archive.read(f"{folder}/constant{number}.bin"), np.dtype(empty.dtype).newbyteorder("<")
            )
            tensors[empty.name] = self._tensor(each, raw.astype(empty.dtype).reshape(empty.shape))
        for name in inputs:
            graph.add_input(tensors.pop(name))
        for tensor in tensors.values():
            graph.add_tensor(tensor)
        for name, op, ins, outs, attributes in values["nodes"]:
            if op not in OPS:
                raise ValueError(f"there is no operator {op!r}")
            graph.add_node(
                Node(name, op, tuple(ins), tuple(outs), {k: _tuples(v) for k, v in attributes.items()})
            )
        return graph.finish([_typed(name, str, "output") for name in values["outputs"]])


def _tuples(value: Any) -> Any:
    """Lists of JSON as the tuples they were."""
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value
