"""Reading and writing of compiled network files, and the persistent cache of compiled networks.

A file is an uncompressed ZIP archive of a JSON manifest, programs, memory images and constants.
"""

import io
import json
import logging
import struct
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, BinaryIO

from numpy.typing import NDArray

from compiler.cache.content_store import ContentStore
from compiler.cache.digest import name, version
from compiler.cache.model_source import ModelSource
from compiler.ir.graph import Graph
from compiler.ir.identity import stored
from compiler.ir.tensor import Tensor
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.package_reader import FORMAT, MANIFEST, VERSION, PackageReader
from compiler.runtime.stages import Control, NetworkLengths, Origin, Stage
from compiler.util.files import PACKAGE_SUFFIX
from hw.config import MlaConfig
from hw.errors import InputError, reason_of

_log = logging.getLogger(__name__)

#: Kind of the entries of `NetworkCache`.
_KIND = "network"
#: Message for a file that is not a ZIP archive with a manifest.
_OTHER_FILE = f"is not a compiled network ({PACKAGE_SUFFIX}, written by mla compile), or is cut short"
#: Exceptions raised by reading a damaged archive or manifest.
_DAMAGE = (
    zipfile.BadZipFile,
    KeyError,
    ValueError,
    TypeError,
    IndexError,
    AttributeError,
    struct.error,
    EOFError,
    RuntimeError,
    OverflowError,
    MemoryError,  # RuntimeError: encrypted members, nesting too deep
)


def to_bytes(network: CompiledNetwork, *, whole: bool = False) -> bytes:
    """Serialize a network; if `whole`, include the graph from which it was compiled."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:

        def put(name: str, data: bytes | str) -> None:
            archive.writestr(zipfile.ZipInfo(name), data)  # a timestamp would make every file different

        stages = _stages(put, "", network.stages)
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "name": network.name,
            "config": stored(network.config),
            "rounding": network.rounding,
            "batch": network.batch,
            "smaller": [stored(each) for each in network.smaller],
            "lengths": None if network.lengths is None else _lengths(network.lengths),
            "inputs": [_tensor(tensor) for tensor in network.inputs],
            "outputs": _with_contents(put, "output", network.outputs),
            "states": _states(put, network),
            "host": [stored(each) for each in network.host],
            "removed": [stored(each) for each in network.removed],
            "rewritten": [stored(each) for each in network.rewritten],
            "floor": stored(network.floor),
            "schedule": json.loads(network.schedule.to_json()),
            "stages": stages,
            "quantization": None if network.quantization is None else network.quantization.document(),
            "graph": _graph(put, "graph", network.graph) if whole and network.graph else None,
        }
        put(MANIFEST, json.dumps(manifest, indent=1))
    return buffer.getvalue()


def read_package(path: Path) -> CompiledNetwork:
    """Read a network from a file.

    Raises
    ------
    InputError
        The file cannot be read or is damaged.
    """
    started = time.monotonic()
    try:
        with path.open("rb") as file:
            network = from_bytes(file)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {reason_of(error)}") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return replace(network, origin=Origin.FILE, compile_seconds=time.monotonic() - started)


def from_bytes(file: BinaryIO) -> CompiledNetwork:
    """Read a network from an open file.

    Raises
    ------
    InputError
        The contents are damaged.
    """
    try:
        archive = zipfile.ZipFile(file)
    except zipfile.BadZipFile:
        raise InputError(_OTHER_FILE) from None
    except _DAMAGE as error:
        raise _damaged(error) from None
    with archive:
        if MANIFEST not in archive.namelist():
            raise InputError(_OTHER_FILE)
        try:
            return PackageReader(archive).network()
        except InputError as error:
            raise InputError(f"damaged compiled network: {error}") from None
        except _DAMAGE as error:
            raise _damaged(error) from None


def _damaged(error: Exception) -> InputError:
    reason = f"{type(error).__name__} {error}".strip()
    return InputError(f"damaged compiled network: {reason}")


def _lengths(lengths: NetworkLengths) -> dict[str, Any]:
    floors = [[[each.macs, each.bytes, each.skipped] for each in floors] for floors in lengths.floors]
    return {
        "name": lengths.name,
        "values": lengths.values,
        "operands": lengths.operands,
        "growth": dict(lengths.growth),
        "floors": floors,
        "longest": lengths.longest,
    }


_Put = Callable[[str, bytes | str], None]


def _states(put: _Put, network: CompiledNetwork) -> list[dict[str, Any]]:
    for number, state in enumerate(network.states):
        put(f"state{number}.bin", _contents(state.initial))
    outputs = _with_contents(put, "state_output", [state.output for state in network.states])
    inputs = [_tensor(state.input) for state in network.states]
    return [{"input": one, "output": other} for one, other in zip(inputs, outputs, strict=True)]


def _stages(put: _Put, folder: str, stages: Sequence[Stage]) -> list[dict[str, Any]]:
    return [_stage(put, f"{folder}stage{i}", stage) for i, stage in enumerate(stages)]


def _stage(put: _Put, folder: str, stage: Stage) -> dict[str, Any]:
    out: dict[str, Any] = {
        "inputs": [_tensor(tensor) for tensor in stage.inputs],
        "outputs": [_tensor(tensor) for tensor in stage.outputs],
    }
    if stage.code:
        code = stage.code
        for number, part in enumerate(code.parts):
            put(f"{folder}/program{number}.mlap", part.program.to_bytes())
            for i, variant in enumerate(part.instead):
                put(f"{folder}/program{number}.{i}.mlap", variant.program.to_bytes())
        put(f"{folder}/image.bin", code.image.tobytes())
        out["code"] = {
            "layers": [part.layers for part in code.parts],
            "tags": code.tags,
            "memory": code.memory,
            "mutable": code.mutable,
            "regions": None if code.regions is None else stored(code.regions),
            "places": code.operand_numbers,
            "infos": [stored(info) for info in stage.infos],
            "peak": None if code.peak is None else asdict(code.peak),
            "guards": [[stored(variant.guard) for variant in part.instead] for part in code.parts],
            "floor": None if stage.floor is None else stored(stage.floor),
            "spared": None if stage.spared is None else stored(stage.spared),
        }
    if stage.graph:
        out["graph"] = _graph(put, folder, stage.graph)
    if stage.control:
        out["control"] = _control(put, folder, stage.control)
    return out


def _control(put: _Put, folder: str, control: Control) -> dict[str, Any]:
    return {
        "name": control.name,
        "op": control.op,
        "attributes": control.attributes,
        "operands": _with_contents(put, f"{folder}/operand", control.operands),
        "outputs": _with_contents(put, f"{folder}/output", control.outputs),
        "bodies": [
            {
                "inputs": [_tensor(tensor) for tensor in body.inputs],
                "outputs": _with_contents(put, f"{folder}/body{i}/output", body.outputs),
                "stages": _stages(put, f"{folder}/body{i}/", body.stages),
            }
            for i, body in enumerate(control.bodies)
        ],
    }


def _with_contents(put: _Put, folder: str, tensors: Sequence[Tensor]) -> list[dict[str, Any]]:
    """Return descriptions of tensors, and write the contents of the constants among them."""
    for number, tensor in enumerate(tensors):
        if tensor.data is not None:
            put(f"{folder}{number}.bin", _contents(tensor.data))
    return [_tensor(tensor) | {"constant": tensor.constant} for tensor in tensors]


def _contents(data: NDArray) -> bytes:
    return data.astype(data.dtype.newbyteorder("<")).tobytes()


def _graph(put: _Put, folder: str, graph: Graph) -> dict[str, Any]:
    constants = [tensor for tensor in graph.tensors.values() if tensor.data is not None]
    for number, tensor in enumerate(constants):
        assert tensor.data is not None
        put(f"{folder}/constant{number}.bin", _contents(tensor.data))
    return {
        "name": graph.name,
        "tensors": [_tensor(tensor) for tensor in graph.tensors.values() if tensor.data is None],
        "constants": [_tensor(tensor) for tensor in constants],
        "order": list(graph.tensors),  # part of the graph's digest
        "nodes": [
            [
                node.name,
                node.op,
                node.inputs,
                node.outputs,
                node.attributes,
                [_graph(put, f"{folder}/node{i}/body{j}", body) for j, body in enumerate(node.bodies)],
            ]
            for i, node in enumerate(graph)
        ],
        "inputs": graph.inputs,
        "outputs": graph.outputs,
    }


def _tensor(tensor: Tensor) -> dict[str, Any]:
    q = tensor.quantization
    return {
        "name": tensor.name,
        "shape": tensor.shape,
        "dtype": tensor.dtype,
        "quantization": None if q is None else [q.scale, q.zero_point, q.axis],
    }


class NetworkCache:
    """Cache entry for the network compiled from a model, a hardware configuration and options.

    Parameters
    ----------
    store : ContentStore
        Store that holds the entries.
    source : ModelSource
        The model, identified by its digest.
    config : MlaConfig
        Hardware configuration of the network.
    options : anything that has a digest
        Everything else that the network depends on.
    """

    def __init__(self, store: ContentStore, source: ModelSource, config: MlaConfig, options: Any):
        self.store = store
        self.key = name(version(), source.digest, asdict(config), options)

    def get(self) -> CompiledNetwork | None:
        """Return the cached network; None if it is missing or damaged."""
        found = self.store.get(_KIND, self.key)
        if found is None:
            return None
        try:
            return from_bytes(io.BytesIO(found))
        except InputError as error:
            _log.warning("the cache: %s; compiling again", error)
            return None

    def put(self, network: CompiledNetwork) -> None:
        """Store a network."""
        self.store.put(_KIND, self.key, to_bytes(network, whole=True))
