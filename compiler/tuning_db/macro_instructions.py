"""Learned macro-instructions in the database: accepted schedules and programs of layers, found by shape."""

import re
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, bindparam, delete, select

from compiler.cache import digest
from compiler.layers.base import Layer
from compiler.schedule.program_override import ProgramTemplate, read_template, template_values
from compiler.schedule.schedule import LayerSchedule
from compiler.tuning_db import json_codec
from compiler.tuning_db.connection import MACROS, SealedRows, as_bytes, entries, many, remove
from compiler.tuning_db.entries import EntryKey, is_digest
from compiler.util.checks import DAMAGE, Fields, parsed
from hw.isa.enums import Dtype

#: Maximum number of stored macro-instructions; the oldest are deleted first.
MAX_MACROS = 20_000
#: Number of digits of the digest in a name, and maximum number of characters of the operators in it.
_NAME_DIGITS, _MAX_OPS = 12, 32


@dataclass(frozen=True, kw_only=True)
class MacroInstruction:
    """Learned macro-instruction: the code of a layer in the best schedule of a searched network.

    Parameters
    ----------
    key : EntryKey
        Digest of the layer (`compiler.cache.digest.shape_of`), conditions, options and goal.
    schedule : LayerSchedule
        Schedule of the layer, from which its commands are generated anew.
    template : ProgramTemplate or None
        Changes of the generated commands; None if they are used as generated.
    machine : str
        Digest of the machine configuration without the timing of the memory.
    before, after : str
        Digests of the adjacent layers, which influence the layer's cycles; empty at the ends of the network.
    network : str
        Digest of the searched network.
    cycles, static_cycles : int
        Cycles of the layer, or of the layers with which it shares a counter tag, under the best schedule and under the
        static compiler's schedule of the same network.
    words : int
        Number of words of the program that contains the layer's commands.
    model : str
        Name of the searched network.
    layer : str
        Name of the layer in that network.
    ops : tuple of str
        Operators of the layer.
    operands : tuple of str
        Signature: direction, type and shape of each operand.
    test_inputs : int
        Number of inputs with which the changed program was tested; 0 if it was proved for all inputs.
    rules : int
        Version of the rules by which the changed program was accepted (`compiler.tuning_db.session`); 0 if there is no
        template.
    method : str
        Name of the search method.
    when : float
        Time at which the entry was stored, in seconds since 1970 (UTC).
    """

    key: EntryKey
    schedule: LayerSchedule
    template: ProgramTemplate | None = None
    machine: str
    before: str
    after: str
    network: str
    cycles: int
    static_cycles: int
    words: int = 0
    model: str = ""
    layer: str = ""
    ops: tuple[str, ...] = ()
    operands: tuple[str, ...] = ()
    test_inputs: int = 0
    rules: int = 0
    method: str = ""
    when: float = 0.0

    @cached_property
    def name(self) -> str:
        """Name, which depends on subgraph, machine and program only: operators, and digits of a digest of these."""
        template = None if self.template is None else template_values(self.template)
        whole = digest.name("macro", self.key.subgraph, self.machine, self.schedule, template)
        ops = "_".join(re.sub(r"[^a-z0-9]+", "_", each.lower()).strip("_") for each in self.ops)[:_MAX_OPS]
        return f"{ops.strip('_') or 'layer'}-{whole[:_NAME_DIGITS]}"

    @property
    def saved(self) -> int:
        """Number of cycles saved in the searched network, compared with the static compiler's program."""
        return self.static_cycles - self.cycles


def operands_of(layer: Layer) -> tuple[str, ...]:
    """Return the signature of a layer: direction, type and shape of each tensor, without constants."""
    each = [("in", image) for name, image in layer.shapes.items() if name != layer.y]
    return tuple(
        f"{way} {Dtype(image.dtype).name.lower()} {image.h}x{image.w}x{image.c}"
        for way, image in [*each, ("out", layer.shapes[layer.y])]
    )


def values(macro: MacroInstruction) -> dict[str, Any]:
    """Encode a macro-instruction as JSON values."""
    plain = (
        *(
            "machine",
            "before",
            "after",
            "network",
            "cycles",
            "static_cycles",
            "words",
            "model",
            "layer",
            "ops",
        ),
        *("operands", "test_inputs", "rules", "method", "when"),
    )
    out = json_codec.key_values(macro.key) | {name: getattr(macro, name) for name in plain}
    out["schedule"] = json_codec.schedule_values(macro.schedule)
    if macro.template is not None:
        out["template"] = template_values(macro.template)
    return out


def read(given: Any) -> MacroInstruction:
    """Restore a macro-instruction from untrusted JSON values; raise ValueError or InputError if they are not valid."""
    fields = Fields(given)
    schedule = json_codec.read_schedule(fields.get("schedule"))
    digests = {name: fields.text(name) for name in ("machine", "before", "after", "network")}
    if not all(is_digest(each) for each in digests.values() if each):
        raise ValueError("machine, network and neighbours of a macro-instruction must be digests")
    if not isinstance(schedule, LayerSchedule):
        raise ValueError("a macro-instruction must have the schedule of a layer")
    return MacroInstruction(
        key=json_codec.read_key(fields),
        schedule=schedule,
        template=read_template(fields.get("template")) if "template" in fields.values else None,
        machine=digests["machine"],
        before=digests["before"],
        after=digests["after"],
        network=digests["network"],
        cycles=fields.count("cycles"),
        static_cycles=fields.count("static_cycles"),
        words=fields.count("words"),
        model=fields.text("model"),
        layer=fields.text("layer"),
        ops=fields.texts("ops"),
        operands=fields.texts("operands"),
        test_inputs=fields.count("test_inputs"),
        rules=fields.count("rules"),
        method=fields.text("method"),
        when=fields.number("when"),
    )


def read_bytes(data: bytes) -> MacroInstruction:
    """Restore a macro-instruction from the data of an entry."""
    return read(parsed(data))


def columns(macro: MacroInstruction) -> dict[str, Any]:
    """Return the values of the index columns."""
    return json_codec.key_values(macro.key) | {"network": macro.network}


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
    """Return the macro-instructions with any of the keys, the latest first.

    Parameters
    ----------
    rows : SealedRows
        Entries of the database.
    keys : collection of EntryKey
        Keys of the layers.
    foreign : bool
        False for those that this user measured, True for those of others, which must be measured before use.
    """
    if not rows.has_macros:
        return []
    pairs = {(key.profile, key.options) for key in keys}
    subgraphs = sorted({key.subgraph for key in keys})

    def work(connection: Connection) -> list[MacroInstruction]:
        found = []
        for profile, options in pairs:
            given = {"profile": profile, "options": options, "subgraphs": subgraphs}
            for each, trusted in rows.read(connection, MACROS, _WITH_SHAPES, read_bytes, given):
                if trusted != foreign and each.key in keys:
                    found.append(each)
        return found

    return sorted(rows.work(work), key=lambda each: -each.when)


def everything(rows: SealedRows) -> list[tuple[MacroInstruction, bool]]:
    """Return all macro-instructions, each with a flag that is True if this user measured it."""
    if not rows.has_macros:
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
