"""Learned macro-instructions in the database: accepted schedules and programs of layers, found by shape."""

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, bindparam, delete, select

from compiler.cache import digest
from compiler.layers.base import Layer
from compiler.schedule.program_override import ProgramTemplate, read_template, template_values
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning_db import json_codec
from compiler.tuning_db.connection import MACROS, SealedRows, as_bytes, entries, many, remove
from compiler.tuning_db.entries import EntryKey, is_digest
from compiler.util.checks import DAMAGE, Fields, parsed
from hw.isa.enums import Dtype

if TYPE_CHECKING:
    from compiler.runtime.compiled import CompiledNetwork

#: Maximum number of stored macro-instructions; the oldest are deleted first.
MAX_MACROS = 20_000
#: Maximum number of layers of a macro-instruction.
MAX_PARTS = 256
#: Number of digits of the digest in a name, and maximum number of characters of the operators in it.
_NAME_DIGITS, _MAX_OPS = 12, 32


@dataclass(frozen=True, kw_only=True)
class MacroPart:
    """Layer of a learned macro-instruction.

    Parameters
    ----------
    shape : str
        Digest of the layer (`compiler.cache.digest.shape_of`).
    schedule : LayerSchedule
        Schedule of the layer, from which its commands are generated anew.
    template : ProgramTemplate or None
        Changes of the generated commands; None if they are used as generated.
    layer : str
        Name of the layer in the searched network.
    ops : tuple of str
        Operators of the layer.
    operands : tuple of str
        Signature: direction, type and shape of each operand.
    """

    shape: str
    schedule: LayerSchedule
    template: ProgramTemplate | None = None
    layer: str = ""
    ops: tuple[str, ...] = ()
    operands: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MacroInstruction:
    """Learned macro-instruction: the code of a layer, or of adjacent layers whose cycles are counted together.

    It is taken from a trial of a searched network, and takes fewer cycles there than the code of the static compiler.

    Parameters
    ----------
    key : EntryKey
        Digest of the layers (`group_of`), conditions, options and goal.
    parts : tuple of MacroPart
        Layers in execution order, at least one.
    machine : str
        Digest of the machine configuration without the timing of the memory.
    before, after : str
        Digests of the adjacent layers, which influence the cycles; empty at the ends of the network.
    context : str
        Digest of the other circumstances that influence the cycles (`Surroundings.context`); empty if unknown.
    network : str
        Digest of the searched network.
    trial : str
        Digest of the trial's schedule (`trial_of`); empty in entries of earlier versions.
    cycles, static_cycles : int
        Cycles of the layers in the trial, with the cycles that it cost adjacent layers, and under the static compiler's
        schedule of the same network.
    words : int
        Number of words of the programs that contain the layers' commands.
    model : str
        Name of the searched network.
    test_inputs : int
        Number of inputs with which the changed program was tested; 0 if it was proved for all inputs.
    rules : int
        Version of the rules by which the changed program was accepted (`compiler.tuning_db.session`); 0 if there is no
        template.
    method : str
        Name of the search method that proposed the layers' schedules.
    when : float
        Time at which the entry was stored, in seconds since 1970 (UTC).
    """

    key: EntryKey
    parts: tuple[MacroPart, ...]
    machine: str
    before: str
    after: str
    context: str = ""
    network: str
    trial: str = ""
    cycles: int
    static_cycles: int
    words: int = 0
    model: str = ""
    test_inputs: int = 0
    rules: int = 0
    method: str = ""
    when: float = 0.0

    @cached_property
    def name(self) -> str:
        """Name, which depends on subgraph, machine and program only: operators, and digits of a digest of these."""
        programs: list[Any] = []
        for part in self.parts:
            template = None if part.template is None else template_values(part.template)
            programs += [part.schedule, template]
        whole = digest.name("macro", self.key.subgraph, self.machine, *programs)
        ops = "_".join(re.sub(r"[^a-z0-9]+", "_", each.lower()).strip("_") for each in self.ops)[:_MAX_OPS]
        return f"{ops.strip('_') or 'layer'}-{whole[:_NAME_DIGITS]}"

    @property
    def saved(self) -> int:
        """Number of cycles saved in the searched network, compared with the static compiler's program."""
        return self.static_cycles - self.cycles

    @property
    def ops(self) -> tuple[str, ...]:
        """Operators of all layers."""
        return tuple(op for part in self.parts for op in part.ops)

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers in the searched network."""
        return tuple(part.layer for part in self.parts)

    @property
    def templates(self) -> bool:
        """True if any layer has a template."""
        return any(part.template is not None for part in self.parts)

    @property
    def first_key(self) -> EntryKey:
        """Key with the digest of the first layer only, by which the entry is found."""
        return replace(self.key, subgraph=self.parts[0].shape)


def group_of(shapes: Sequence[str]) -> str:
    """Return the digest of adjacent layers, given their digests; that of a single layer is its own."""
    return shapes[0] if len(shapes) == 1 else digest.name("group", *shapes)


def trial_of(schedule: Schedule) -> str:
    """Return the digest of the schedule of a trial."""
    return digest.name("trial", schedule)


def use_of(name: str) -> str:
    """Return the digest under which executions are stored that also contain other layers than a macro-instruction."""
    return digest.name("use", name)


class Surroundings:
    """Circumstances that influence the cycles of a network's layers, apart from the adjacent layers.

    Parameters
    ----------
    network : CompiledNetwork
        Network with its graph.
    """

    def __init__(self, network: "CompiledNetwork"):
        assert network.graph is not None
        self.network, self.graph = network, network.graph
        self._layer_of = {node: number for number, info in enumerate(network.infos) for node in info.nodes}
        self._host = {each.node for each in network.host}

    def context(self, start: int, count: int, schedules: Mapping[str, LayerSchedule]) -> str:
        """Return a digest of the circumstances of adjacent layers under given schedules.

        It covers which inputs are on the chip, which results are needed in DRAM and by how many other layers, and
        whether the layers before and after are interleaved, streamed, or part of the same program or counter tag.

        Parameters
        ----------
        start, count : int
            Index of the first layer in `network.infos`, and number of layers.
        schedules : mapping of str to LayerSchedule
            Schedules of all layers by name.
        """
        infos, inside = self.network.infos, range(start, start + count)
        inputs: list[bool] = []
        outputs: list[tuple[bool, int]] = []
        for number in inside:
            for node in infos[number].nodes:
                if node not in self.graph.nodes:
                    continue
                for tensor in self.graph.nodes[node].inputs:
                    if self.graph.tensors[tensor].data is not None:
                        continue
                    source = self._source(tensor)
                    if source is None:
                        inputs.append(False)
                    elif source not in inside:
                        inputs.append(schedules[infos[source].name].on_chip)
                readers: set[int | None] = set()
                for tensor in self.graph.nodes[node].outputs:
                    self._readers(tensor, readers)
                if readers - set(inside):
                    outputs.append((None in readers, len(readers - {None} - set(inside))))
        before = schedules.get(infos[start - 1].name) if start else None
        after = schedules.get(infos[start + count].name) if start + count < len(infos) else None
        fused = (
            None
            if before is None
            else (before.interleave, bool(before.stream_channel_blocks or before.stream_row_blocks)),
            None
            if after is None
            else (
                after.interleave,
                bool(after.stream_channel_blocks or after.stream_row_blocks),
                after.same_program_as_previous,
                after.own_counter_tag,
            ),
        )
        return digest.name("context", inputs, outputs, *fused)

    def _source(self, tensor: str) -> int | None:
        """Return the index of the layer that computes a tensor, past nodes without commands; None if it is in DRAM."""
        while (node := self.graph.producer(tensor)) is not None and node.name not in self._host:
            if node.name in self._layer_of:
                return self._layer_of[node.name]
            if not node.inputs or node.bodies:
                break
            tensor = node.inputs[0]
        return None

    def _readers(self, tensor: str, found: set[int | None]) -> None:
        """Add the indices of the layers that read a tensor; None stands for a reader of the result in DRAM."""
        if tensor in self.graph.outputs:
            found.add(None)
        for node in self.graph.consumers(tensor):
            if node.name in self._layer_of:
                found.add(self._layer_of[node.name])
            elif node.name in self._host or node.bodies:
                found.add(None)
            else:
                for each in node.outputs:
                    self._readers(each, found)


def operands_of(layer: Layer) -> tuple[str, ...]:
    """Return the signature of a layer: direction, type and shape of each tensor, without constants."""
    each = [("in", image) for name, image in layer.shapes.items() if name != layer.y]
    return tuple(
        f"{way} {Dtype(image.dtype).name.lower()} {image.h}x{image.w}x{image.c}"
        for way, image in [*each, ("out", layer.shapes[layer.y])]
    )


#: Names of the fields of a macro-instruction and of a part that are stored as they are.
_PLAIN = (
    *("machine", "before", "after", "context", "network", "cycles", "static_cycles", "words", "model"),
    *("test_inputs", "rules", "method", "when"),
)
_PLAIN_OF_PART = ("shape", "layer", "ops", "operands")


def values(macro: MacroInstruction) -> dict[str, Any]:
    """Encode a macro-instruction as JSON values."""
    out = json_codec.key_values(macro.key) | {name: getattr(macro, name) for name in _PLAIN}
    if macro.trial:
        out["trial"] = macro.trial
    out["parts"] = [_part_values(part) for part in macro.parts]
    return out


def _part_values(part: MacroPart) -> dict[str, Any]:
    out = {name: getattr(part, name) for name in _PLAIN_OF_PART}
    out["schedule"] = json_codec.schedule_values(part.schedule)
    if part.template is not None:
        out["template"] = template_values(part.template)
    return out


def read(given: Any) -> MacroInstruction:
    """Restore a macro-instruction from untrusted JSON values; raise ValueError or InputError if they are not valid."""
    fields = Fields(given)
    digests = {name: fields.text(name) for name in ("machine", "before", "after", "context", "network")}
    digests["trial"] = fields.text("trial") if "trial" in fields.values else ""
    if not all(is_digest(each) for each in digests.values() if each):
        raise ValueError(
            "machine, network, trial, neighbours and context of a macro-instruction must be digests"
        )
    parts, key = tuple(_read_part(each) for each in fields.sequence("parts")), json_codec.read_key(fields)
    if not 0 < len(parts) <= MAX_PARTS:
        raise ValueError(f"a macro-instruction must have 1 to {MAX_PARTS} layers")
    if key.subgraph != group_of([part.shape for part in parts]):
        raise ValueError("the digest of a macro-instruction is not that of its layers")
    return MacroInstruction(
        key=key,
        parts=parts,
        machine=digests["machine"],
        before=digests["before"],
        after=digests["after"],
        context=digests["context"],
        network=digests["network"],
        trial=digests["trial"],
        cycles=fields.count("cycles"),
        static_cycles=fields.count("static_cycles"),
        words=fields.count("words"),
        model=fields.text("model"),
        test_inputs=fields.count("test_inputs"),
        rules=fields.count("rules"),
        method=fields.text("method"),
        when=fields.number("when"),
    )


def _read_part(given: Any) -> MacroPart:
    fields = Fields(given)
    schedule = json_codec.read_schedule(fields.get("schedule"))
    if not isinstance(schedule, LayerSchedule):
        raise ValueError("a macro-instruction must have the schedules of layers")
    return MacroPart(
        shape=fields.text("shape"),
        schedule=schedule,
        template=read_template(fields.get("template")) if "template" in fields.values else None,
        layer=fields.text("layer"),
        ops=fields.texts("ops"),
        operands=fields.texts("operands"),
    )


def read_bytes(data: bytes) -> MacroInstruction:
    """Restore a macro-instruction from the data of an entry."""
    return read(parsed(data))


def columns(macro: MacroInstruction) -> dict[str, Any]:
    """Return the values of the index columns."""
    return json_codec.key_values(macro.first_key) | {"network": macro.network}


#: Query built once, so that SQLAlchemy caches its compiled form.
_WITH_SHAPES = entries(MACROS).where(
    MACROS.c.profile == bindparam("profile"),
    MACROS.c.options == bindparam("options"),
    MACROS.c.subgraph.in_(bindparam("subgraphs", expanding=True)),
)


def put(rows: SealedRows, macros: Sequence[MacroInstruction]) -> None:
    """Write the macro-instructions of a network in one transaction, in place of those that were stored for it before.

    The oldest macro-instructions are deleted if there are more than `MAX_MACROS`.
    """
    now = time.time()
    dated = [each if each.when else replace(each, when=now) for each in macros]
    made = [(each, as_bytes(values(each), read)) for each in dated]
    owners = {(each.network, each.key.profile, each.key.options) for each in macros}

    def work(connection: Connection) -> None:
        at = MACROS.c
        for network, profile, options in owners:
            connection.execute(
                delete(MACROS).where(at.network == network, at.profile == profile, at.options == options)
            )
        for each, data in made:
            rows.add(connection, MACROS, data, columns(each))
        newest = select(at.id).order_by(at.id.desc()).offset(MAX_MACROS)
        remove(connection, MACROS, list(connection.scalars(newest)))

    rows.write(work)


def with_keys(
    rows: SealedRows, keys: Collection[EntryKey], *, foreign: bool = False
) -> list[MacroInstruction]:
    """Return the macro-instructions whose first layer has any of the keys, the latest first.

    Parameters
    ----------
    rows : SealedRows
        Entries of the database.
    keys : collection of EntryKey
        Keys with the digests of single layers.
    foreign : bool
        False for those that this user measured, True for those of others, which must be measured before use.
    """
    if not rows.has(MACROS):
        return []
    pairs = {(key.profile, key.options) for key in keys}
    subgraphs = sorted({key.subgraph for key in keys})

    def work(connection: Connection) -> list[MacroInstruction]:
        found = []
        for profile, options in pairs:
            given = {"profile": profile, "options": options, "subgraphs": subgraphs}
            for each, trusted in rows.read(connection, MACROS, _WITH_SHAPES, read_bytes, given):
                if trusted != foreign and each.first_key in keys:
                    found.append(each)
        return found

    return sorted(rows.work(work), key=lambda each: -each.when)


def everything(rows: SealedRows) -> list[tuple[MacroInstruction, bool]]:
    """Return all macro-instructions, each with a flag that is True if this user measured it."""
    if not rows.has(MACROS):
        return []
    query = many(MACROS).order_by(MACROS.c.id)
    return rows.work(lambda connection: list(rows.read(connection, MACROS, query, read_bytes)))


def drop(rows: SealedRows, chosen: Callable[[MacroInstruction], bool]) -> int:
    """Remove the macro-instructions that a function selects; return their number."""

    def work(connection: Connection) -> int:
        found = []
        for number, _, data, _ in connection.execute(many(MACROS)):
            try:
                macro = read_bytes(data)
            except DAMAGE:
                continue
            if chosen(macro):
                found.append(number)
        remove(connection, MACROS, found)
        return len(found)

    return rows.write(work)
