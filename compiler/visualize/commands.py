"""Scheduled commands as a graph: buffers, and the transfers and computations between them.

Commands of a layer that have the same source and destination buffers form one node.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from compiler.codegen.executable import CommandStream
from compiler.codegen.semaphores import Issued
from compiler.commands.commands import READS, WRITES, BufferMemory, BufferRef, CircularBuffer, Command, cycles
from compiler.cost.energy import MAC_PJ, PJ_PER_BYTE
from compiler.cost.timeline import timeline
from compiler.ir.graph import Graph, Node
from compiler.ir.ops import OPS
from compiler.lowering.partition import GraphPart
from compiler.options import DramTiming
from compiler.visualize.operators import title
from compiler.visualize.view import Cost, View, add_edge, add_node, size, start
from cosim.semantics.command_fields import CommandFields, unpack_fields
from hw.config import MlaConfig
from hw.isa.enums import DTYPE_BYTES, BSource, Reduce, Unit

#: Number of bytes of an accumulator lane, and of a table entry.
_SUM, _ENTRY = 4, 2
#: Used bytes of a parameter slot for each lane.
_PARAMETER = 9


#: Pseudo-field for partial sums of earlier steps, which MATRIX reads in order to accumulate.
AGAIN = "again"


def traffic(config: MlaConfig, command: Issued) -> dict[str, int]:
    """Return the transferred bytes by address field; MATRIX and FUSE operands count as whole rows of N lanes."""
    c = unpack_fields(command.unit, list(command.values))
    return {Unit.LOAD: _load, Unit.STORE: _store, Unit.MATRIX: _matrix, Unit.FUSE: _fuse}[command.unit](
        config.n, c
    )


def _load(n: int, c: CommandFields) -> dict[str, int]:
    if c.packed:
        return {"dram": c.len * c.y_count, "dst": 2 * n * c.y_count * c.z_count}
    count = c.len * c.y_count * c.z_count
    return {"dram": 0 if c.fill else count, "dst": count}


def _store(_: int, c: CommandFields) -> dict[str, int]:
    count = c.len * c.y_count * c.z_count
    return {"src": count, "dram": count}


def _matrix(n: int, c: CommandFields) -> dict[str, int]:
    if c.dw:
        rows = (c.dw_len - c.dw_lead - 1) // c.x_count // c.dw_sy + 1
        taps = c.oc_count * c.taps * c.groups
        return {
            "a_base": c.oc_count * c.dw_len * n,
            "w_base": taps * n,
            "acc_base": c.oc_count * rows * c.dw_out_w * n * _SUM,
        }
    tiles = c.oc_count * c.ic_count * c.ky_count * c.kx_count
    points = c.y_count * c.x_count
    fresh = 0 if c.accumulate or c.shift8 else c.oc_count * points
    return {
        "a_base": tiles * points * n,
        "w_base": tiles * n * n,
        "acc_base": tiles * points * n * _SUM,
        AGAIN: (tiles * points - fresh) * n * _SUM,
    }


def _fuse(n: int, c: CommandFields) -> dict[str, int]:
    window, points = c.wy_count * c.wx_count, c.x_count * c.y_count * c.n_count
    results = points * (window if c.reduce == Reduce.NONE else 1)
    lanes = 1 if c.lane_reduce != Reduce.NONE else n
    rows = points * window * n
    slots = (c.x_count if c.p_x else 1) * (c.n_count if c.p_n else 1)
    return {
        "a_base": rows * (DTYPE_BYTES[c.a_dtype] if c.a_src else _SUM),
        "b_base": rows * (DTYPE_BYTES[c.b_dtype] if c.b_src == BSource.SP else _SUM),
        "r_base": rows * DTYPE_BYTES[c.r_dtype],
        "p_base": slots * _PARAMETER * n,
        "stage": rows * _ENTRY * (c.table + c.table_wide + c.table2),
        "d_base": results * lanes * (DTYPE_BYTES[c.d_dtype] if c.d_dst else _SUM),
    }


_NOTE = (
    "bytes that the commands move, cycles of their unit without stalls, energy of the memories on both ends"
)


#: First cycle of each tile in a buffer, and the cycle after its last use.
_Times = dict[tuple[CircularBuffer, int], tuple[int, int]]


@dataclass
class _Work:
    """Commands of a layer that have the same source and destination buffers.

    Parameters
    ----------
    commands : int
        Number of commands.
    cost : Cost
        Total cost of the commands; the energy includes only the MACs.
    edges : dict
        Cost of each edge, by buffer and direction (True if the buffer is written).
    """

    commands: int = 0
    cost: Cost = field(default_factory=Cost)
    edges: dict[tuple[str, bool], Cost] = field(default_factory=dict)


def commands_view(
    graph: Graph,
    parts: Sequence[GraphPart],
    streams: Sequence[CommandStream],
    config: MlaConfig,
    *,
    placed: DramTiming | None,
) -> View:
    """Return the view of buffers and of the commands between them.

    If the DRAM timing `placed` is given, the view also contains addresses, banks and lifetimes of buffers.
    """
    view = start(graph.name, "placed" if placed else "scheduled", config, _NOTE)
    view.graph["memories"] = {
        "sp": [config.sp_bytes, config.sp_banks],
        "acc": [config.acc_rows, config.acc_banks],
        "slot": [config.param_slots, 1],
        "table": [config.table_slots, 1],
    }
    _add(view, config, parts, iter(streams), "", count(), placed)
    for kind, names in (("input", graph.inputs), ("output", graph.outputs)):
        for name in names:
            if (key := f"dram {name}") in view:
                view.nodes[key]["text"].append(f"{kind} of the model")
    return view


def _add(
    view: View,
    config: MlaConfig,
    parts: Sequence[GraphPart],
    streams: Iterator[CommandStream],
    scope: str,
    numbers: Iterator[int],
    placed: DramTiming | None,
) -> None:
    """Add stages in order; `scope` is the name prefix for the tensors of a subgraph."""
    for part in parts:
        if part.device:
            prefix = f"{number} " if (number := next(numbers)) else ""
            _Part(view, config, next(streams), prefix, scope).add(placed)
            continue
        for node in part.graph:
            _host(view, part.graph, node, scope)
            for body, inner, called in zip(node.bodies, part.bodies, OPS[node.op].bodies, strict=True):
                inside = f"{scope}{node.name}.{called}/"
                ends = [(name, True) for name in body.inputs] + [(name, False) for name in body.outputs]
                _link(view, body, node.name, ends, inside)
                _add(view, config, inner, streams, inside, numbers, placed)


def _host(view: View, graph: Graph, node: Node, scope: str) -> None:
    kind = "control" if node.bodies else "host"
    add_node(view, node.name, kind, title(graph, node), node.name, group=node.name)
    ends = [(name, False) for name in node.inputs] + [(name, True) for name in node.outputs]
    _link(view, graph, node.name, ends, scope)


def _link(view: View, graph: Graph, node: str, ends: list[tuple[str, bool]], scope: str) -> None:
    """Add edges, without cycles and energy, between a host node and the DRAM tensors that it accesses."""
    for name, written in dict.fromkeys(ends):
        tensor, key = graph.tensors[name], f"dram {scope}{name}"
        if tensor.constant:
            continue
        if key not in view:
            add_node(view, key, "buffer", name, size(tensor.bytes), memory="dram")
        add_edge(view, *((node, key) if written else (key, node)), name, Cost(tensor.bytes))


class _Part:
    """Builder that adds one accelerator stage to the view."""

    def __init__(self, view: View, config: MlaConfig, stream: CommandStream, prefix: str, scope: str):
        self.view, self.config, self.stream, self.prefix, self.scope = view, config, stream, prefix, scope
        self.layers = stream.lowered.layers
        root = stream.lowered.root
        self.tensors = {home.buffer: root(name) for name, home in stream.layouts.items()}
        self.rings: dict[str, list[CircularBuffer]] = {}
        self.users: dict[str, str] = {}  # the first layer that uses each buffer

    def key(self, ring: CircularBuffer) -> str:
        """Return the node key of a buffer; all slots of a ring share a node, and all stages share DRAM tensors."""
        if ring.memory == BufferMemory.DRAM and ring in self.tensors:
            return f"dram {self.scope}{self.tensors[ring]}"
        return f"{self.prefix}{ring.memory.value} {self._label(ring)}"

    def add(self, placed: DramTiming | None) -> None:
        """Add all nodes and edges of the stage."""
        works: dict[tuple[int, Unit, tuple[str, ...], str], _Work] = {}
        for command, issued in zip(self.stream.commands, self.stream.issued, strict=True):
            reads = tuple(dict.fromkeys(self.key(ref.buffer) for ref in command.reads()))
            key = (command.layer, command.unit, reads, self.key(command.write().buffer))
            self._count(works.setdefault(key, _Work()), command, issued)
        times = self._times(placed) if placed else {}
        for name, rings in self.rings.items():
            self._buffer(name, list(dict.fromkeys(rings)), times)
        for number, ((layer, unit, _, _), work) in enumerate(works.items()):
            self._work(f"{self.prefix}{unit.name.lower()} {number}", self.layers[layer].name, unit, work)

    def _count(self, work: _Work, command: Command, issued: Issued) -> None:
        spent = cycles(command, self.config)
        moved = traffic(self.config, issued)
        macs = 0
        if command.unit == Unit.MATRIX:
            macs = moved["a_base"] * self.config.n
        work.commands += 1
        work.cost += Cost(0, spent, macs * MAC_PJ)
        for name, ref in _refs(command):
            key = self.key(ref.buffer)
            self.rings.setdefault(key, []).append(ref.buffer)
            self.users.setdefault(key, self.layers[command.layer].name)
            price = PJ_PER_BYTE.get(ref.buffer.memory.value, 0.0)
            edge = (key, name == WRITES[command.unit])
            cost = Cost(moved[name], spent, moved[name] * price)
            work.edges[edge] = work.edges.get(edge, Cost()) + cost
        if moved.get(AGAIN):
            back = (self.key(command.write().buffer), False)
            cost = Cost(moved[AGAIN], spent, moved[AGAIN] * PJ_PER_BYTE[BufferMemory.ACC.value])
            work.edges[back] = work.edges.get(back, Cost()) + cost

    def _work(self, key: str, layer: str, unit: Unit, work: _Work) -> None:
        kind = unit.name.lower()
        least = [cost.bytes for (_, written), cost in work.edges.items() if written]
        transfer = unit in (Unit.LOAD, Unit.STORE)
        fill = unit == Unit.LOAD and all(written for _, written in work.edges)
        add_node(
            self.view,
            key,
            kind,
            f"{unit.name} x {work.commands}" if work.commands > 1 else unit.name,
            "fill" if fill else size(sum(least)) if transfer else "",
            "" if fill else f"{work.cost.cycles:,} cycles",
            group=layer,
            cycles=work.cost.cycles,
            pj=work.cost.pj if unit == Unit.MATRIX else None,
            commands=work.commands,
        )
        both = {buffer for buffer, written in work.edges if written}
        for (buffer, written), cost in work.edges.items():
            ends = (key, buffer) if written else (buffer, key)
            again = {"back": True} if unit == Unit.MATRIX and not written and buffer in both else {}
            add_edge(self.view, *ends, self.view.nodes[buffer]["label"], cost, **again)

    def _buffer(self, key: str, rings: list[CircularBuffer], times: _Times) -> None:
        ring = rings[0]
        depth = len(rings) * ring.depth
        unit = {BufferMemory.ACC: "row", BufferMemory.SLOT: "slot", BufferMemory.TABLE: "table"}.get(
            ring.memory
        )
        room = f"{ring.size:,} {unit}{'s' * (ring.size > 1)}" if unit else size(ring.size)
        text = [f"{depth} x {room}" if depth > 1 else room]
        more: dict[str, Any] = {}
        if ring.memory != BufferMemory.DRAM and times:
            tiles = [(each, tile) for each in rings for tile in range(each.depth) if (each, tile) in times]
            more = {
                "starts": [self.stream.starts[each] + tile * each.size for each, tile in tiles],
                "size": ring.size,
                "first": [times[tile][0] for tile in tiles],
                "last": [times[tile][1] for tile in tiles],
            }
            text += _places(self.config, more["starts"], ring)
        add_node(
            self.view,
            key,
            "constant" if ring.data is not None else "buffer",
            self._label(ring),
            *text,
            group=self.users[key],
            memory=ring.memory.value,
            tensor=self.tensors.get(ring, ""),
            depth=depth,
            **more,
        )

    def _label(self, ring: CircularBuffer) -> str:
        """Return the label of a buffer; tensors are named after the layer that produces them."""
        if ring not in self.tensors:
            return ring.family or ring.name
        name = self.tensors[ring]
        root = self.stream.lowered.root
        maker = next((layer.name for layer in self.layers if root(layer.y) == root(name)), "")
        return f"{maker}.y" if maker else name

    def _times(self, dram: DramTiming) -> _Times:
        """Return the lifetimes of tiles, which start after the end of earlier stages."""
        out: _Times = {}
        at = self.view.graph.get("cycles", 0)
        times = timeline(self.config, self.stream, dram)
        for command, time in zip(self.stream.commands, times, strict=True):
            begin, end = round(time.begin), round(time.retired)
            for ref in command.refs():
                tile = (ref.buffer, ref.index % ref.buffer.depth)
                first, last = out.get(tile, (at + begin, at + end))
                out[tile] = (min(first, at + begin), max(last, at + end))
        self.view.graph["cycles"] = max((last for _, last in out.values()), default=at)
        return out


def _refs(command: Command) -> Iterator[tuple[str, BufferRef]]:
    for name in (*READS[command.unit], WRITES[command.unit]):
        value = command.fields.get(name)
        if isinstance(value, BufferRef):
            yield name, value


def _places(config: MlaConfig, starts: list[int], ring: CircularBuffer) -> list[str]:
    """Return the addresses and the banks of a buffer as lines of text."""
    banks = {
        BufferMemory.SP: config.sp_bytes // config.sp_banks,
        BufferMemory.ACC: config.acc_rows // config.acc_banks,
    }.get(ring.memory)
    names = [f"{at:#x}" if ring.memory == BufferMemory.SP else f"{at}" for at in starts]
    shown = [", ".join(names[:4]) + (", ..." if len(names) > 4 else "")]
    if banks:
        used = {b for at in starts for b in range(at // banks, (at + ring.size - 1) // banks + 1)}
        shown.append(f"bank {min(used)}" + (f"..{max(used)}" if len(used) > 1 else ""))
    return shown
