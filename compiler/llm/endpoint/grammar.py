"""Grammar of answers, for prompts and for servers with constrained decoding.

It is written as GBNF, as in llama.cpp and vLLM, and as a JSON schema for JSON-only answers. The assembler accepts
more (expressions, directives) and reports errors itself.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from compiler.runtime.program_text import readable
from compiler.schedule.schedule import LayerSchedule
from hw.isa.commands import PACKED_FIELDS, UNIT_FIELDS
from hw.isa.enums import Unit
from hw.isa.micro_instruction import FORMS, MicroOp, Statistic

_ORDERS = ("rows", "channels")


@dataclass(frozen=True)
class AnswerGrammar:
    """Schedule fields and programs that answers may change.

    Parameters
    ----------
    layers : tuple of str
        Layers whose schedules may change.
    programs : tuple of str
        Programs that may be replaced by text; if empty, the grammar has no assembly.
    kept : frozenset of str
        Schedule fields that must not change.
    """

    layers: tuple[str, ...]
    programs: tuple[str, ...] = ()
    kept: frozenset[str] = frozenset()

    @property
    def fields(self) -> dict[str, type]:
        """Changeable fields of a layer schedule and their types."""
        return {item.name: type(item.default) for item in fields(LayerSchedule) if item.name not in self.kept}


def gbnf(answers: AnswerGrammar) -> str:
    """Return the grammar as GBNF."""
    blocks = ['"```json\\n" schedule "\\n```\\n"']
    rules = _schedule_rules(answers)
    if answers.programs:
        blocks.append('"```asm\\n" program+ "```\\n"')
        heads = _any(f".name {readable(name)}\n" for name in answers.programs)
        rules |= {"program": f"({heads}) line+"} | _ASSEMBLY
    rules = {"root": "block+", "block": _joined(*blocks)} | rules
    return "".join(f"{name} ::= {rule}\n" for name, rule in rules.items())


def _schedule_rules(answers: AnswerGrammar) -> dict[str, str]:
    kinds = {
        kind: [name for name, each in answers.fields.items() if each is kind] for kind in (int, bool, str)
    }
    values = {int: "count", bool: "flag", str: "order"}
    return {
        "schedule": '"{\\"layers\\": {" layer (", " layer)* "}}"',
        "layer": f'({_any(map(json.dumps, answers.layers))}) ": {{" field (", " field)* "}}"',
        "field": _joined(
            *(
                f'({_any(map(json.dumps, names))}) ": " {values[kind]}'
                for kind, names in kinds.items()
                if names
            )
        ),
        "count": "[0-9]+",
        "flag": _any(("true", "false")),
        "order": _any(map(json.dumps, _ORDERS)),
    }


def schema(answers: AnswerGrammar) -> dict[str, Any]:
    """Return the grammar as a JSON schema, with assembly as text."""
    kinds: dict[type, dict[str, Any]] = {
        int: {"type": "integer"},
        bool: {"type": "boolean"},
        str: {"enum": list(_ORDERS)},
    }
    layer = _object({name: kinds[kind] for name, kind in answers.fields.items()})
    parts = {"layers": _object(dict.fromkeys(answers.layers, layer))}
    if answers.programs:
        parts["programs"] = _object({name: {"type": "string"} for name in answers.programs})
    return _object(parts)


def request_fields(way: str | None, answers: AnswerGrammar) -> dict[str, Any]:
    """Return the request fields that enforce the grammar on a type of server; empty for none."""
    if way is None:
        return {}
    if way == "response_format":
        named = {"name": "candidate", "schema": schema(answers)}
        return {way: {"type": "json_schema", "json_schema": named}}
    return {way: {"grammar": gbnf(answers)} if way == "structured_outputs" else gbnf(answers)}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _literal(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _any(texts: Iterable[str]) -> str:
    return _joined(*map(_literal, texts))


def _joined(*rules: str) -> str:
    return " | ".join(rules)


def _form(op: MicroOp) -> str:
    """Return the grammar rule of an instruction."""
    mnemonic, form = op.name.lower(), FORMS[op].operands
    kinds = {"a": "source", "b": "source", "imm": "number"}
    if op is MicroOp.SET:
        return '"set " unit-field ", " (sources | parts)'
    if op is MicroOp.ISSUE:
        return '"issue " unit (", wait(" tokens ")")? (", signal(" tokens ")")?'
    if op is MicroOp.FENCE:
        return '"fence " unit (", " unit)*'
    if op is MicroOp.LOOP:
        return '"loop " sources ", " target'
    if form == ("a", "b", "target"):
        return f'"{mnemonic} " source ", " source ", " target'
    if form[:1] == ("d",):
        return f'"{mnemonic} r" digits ", " sources'
    if form[:1] == ("a",):
        return f'"{mnemonic} " sources'
    operands = ' ", " '.join(kinds.get(kind, "number" if kind == "segment" else kind) for kind in form)
    return f'"{mnemonic} " {operands}' if form else f'"{mnemonic}"'


_UNITS = tuple(unit.name.lower() for unit in Unit)
_ASSEMBLY = {
    "line": 'label ":\\n" | instruction "\\n"',
    "instruction": _joined(*map(_form, FORMS), '".word " number'),
    "sources": 'source (", " source)*',
    "source": _joined(
        '("r" | "op" | "sel") digits', _any(f"%{each.name.lower()}" for each in Statistic), "number"
    ),
    "parts": _joined('"default"', 'part (" " part)*'),
    "part": f"({_any(dict.fromkeys(f.name for packed in PACKED_FIELDS.values() for f in packed.fields))}) "
    '"=" (number | label)',
    "tokens": 'sem (", " sem)*',
    "sem": f'({_any((*_UNITS, "seq"))}) ":" [0-3]',
    "unit": _any(_UNITS),
    "unit-field": _any(f"{unit.name.lower()}.{each.name}" for unit in Unit for each in UNIT_FIELDS[unit]),
    "target": _joined("label", "digits"),
    "label": "[a-zA-Z_] [a-zA-Z0-9_]*",
    "number": '"-"? (digits | "0x" [0-9a-f]+)',
    "digits": "[0-9]+",
}
