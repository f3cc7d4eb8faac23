"""Answers of a remote model: their grammar, for prompts and constrained decoding, and their parser."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from compiler.runtime.program_text import readable
from compiler.schedule.schedule import LayerSchedule, layer_schedule
from compiler.tuning.generators.generator import Candidate, GeneratorTask
from hw.errors import InputError, shown
from hw.isa.commands import PACKED_FIELDS, UNIT_FIELDS
from hw.isa.enums import Unit
from hw.isa.micro_instruction import FORMS, MicroOp, Statistic

#: Maximum number of candidates and of complaints per answer, and of positions at which JSON is parsed.
_MAX_ITEMS, _MAX_POSITIONS = 8, 64
_FENCE = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)
_THOUGHT_END = "</think>"
_MAX_DESCRIPTION_CHARACTERS = 120


@dataclass
class EndpointAnswer:
    """Parsed answer: candidates, and messages about invalid parts."""

    candidates: list[Candidate] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


def _values(text: str) -> Iterator[Any]:
    """Yield the outermost JSON objects and lists in a string."""
    decoder, at = json.JSONDecoder(), 0
    for _ in range(_MAX_POSITIONS):
        starts = [start for start in (text.find("{", at), text.find("[", at)) if start >= 0]
        if not starts:
            return
        try:
            value, at = decoder.raw_decode(text, min(starts))
        except (ValueError, RecursionError):
            at = min(starts) + 1
            continue
        if isinstance(value, dict) or any(isinstance(each, dict) for each in value):
            yield value


_ORDERS = ("rows", "channels")


@dataclass(frozen=True)
class AnswerGrammar:
    """Schedule fields and programs that answers may change.

    Parameters
    ----------
    layers : tuple of str
        Layers whose schedules may change.
    programs : tuple of str
        Programs that may be replaced by assembly text; if empty, the grammar does not contain assembly.
    frozen : frozenset of str
        Schedule fields that must not change.
    """

    layers: tuple[str, ...]
    programs: tuple[str, ...] = ()
    frozen: frozenset[str] = frozenset()

    @property
    def fields(self) -> dict[str, type]:
        """Fields of a layer schedule that may be changed, with their types."""
        return {
            item.name: type(item.default) for item in fields(LayerSchedule) if item.name not in self.frozen
        }


def read_answer(task: GeneratorTask, answers: AnswerGrammar, text: str, generator: str) -> EndpointAnswer:
    """Parse the candidates of an answer, which may be any string.

    Parameters
    ----------
    task : GeneratorTask
        Task that the prompt described.
    answers : AnswerGrammar
        Schedule fields and programs that answers may change.
    text : str
        Text written by the model.
    generator : str
        Name of the generator, which the candidates contain.
    """
    reader = _Reader(task, answers, generator)
    reader.read(text.rpartition(_THOUGHT_END)[2])
    found = reader.found
    if not found.candidates and not found.complaints:
        found.complaints.append("the answer contains neither a JSON object with layers nor a program")
    return found


class _Reader:
    """Parser of one answer."""

    def __init__(self, task: GeneratorTask, answers: AnswerGrammar, generator: str):
        self.task, self.answers, self.generator = task, answers, generator
        self.found = EndpointAnswer()

    def read(self, text: str) -> None:
        """Parse all code blocks; if there are none, parse the whole text as one block."""
        blocks = [match[1] for match in _FENCE.finditer(text)] or [text]
        texts: dict[str, str] = {}
        for block in blocks:
            programs = self._programs(block)
            if programs is None:
                self._json(block)
            elif texts.keys() & programs.keys():
                self._texts(texts)
                texts = programs
            else:
                texts |= programs
        self._texts(texts)

    def _programs(self, block: str) -> dict[str, str] | None:
        """Return the program texts of a block by name; None if the block is not assembly."""
        starts = [match.start() for match in re.finditer(r"(?m)^[ \t]*\.name\b", block)]
        if not starts:
            alone = len(self.answers.programs) == 1 and re.search(r"(?m)^[ \t]*halt\b", block)
            return {self.answers.programs[0]: block} if alone else None
        out: dict[str, str] = {}
        for start, end in zip(starts, [*starts[1:], len(block)], strict=True):
            piece = block[start:end]
            name = self._program(piece.splitlines()[0].split(";")[0].split(None, 1)[1:])
            if name is not None:
                out[name] = piece
        return out

    def _program(self, named: list[str]) -> str | None:
        """Return the name of the program that a `.name` line refers to; None if it is unknown."""
        given = named[0].strip() if named else ""
        for name in self.answers.programs:
            if given in (name, readable(name)):
                return name
        known = ", ".join(map(repr, self.answers.programs)) or "no program may be changed"
        self._complain(f"program {shown(given)} does not exist; programs: {known}")
        return None

    def _texts(self, texts: Mapping[str, str]) -> None:
        if texts:
            texts = {name: text.encode(errors="replace").decode() for name, text in texts.items()}
            description = f"programs {', '.join(texts)} rewritten"
            self._add(
                lambda: self.task.with_texts(texts, self.generator, description[:_MAX_DESCRIPTION_CHARACTERS])
            )

    def _json(self, block: str) -> None:
        values = list(_values(block))
        if not values and block.lstrip().startswith("{"):
            self._complain("a JSON object in the answer is truncated or malformed")
        for value in values:
            for each in value if isinstance(value, list) else [value]:
                listed = each.get("candidates") if isinstance(each, dict) else None
                for candidate in listed if isinstance(listed, list) else [each]:
                    self._object(candidate)

    def _object(self, value: Any) -> None:
        """Add the candidates of a JSON object with programs, layers, or both; the key `layers` may be omitted."""
        if not isinstance(value, dict):
            self._complain(f"a proposal must be a JSON object, not {shown(value)}")
            return
        texts = value.get("programs")
        if isinstance(texts, dict) and texts:
            given = {self._program([name]): text for name, text in texts.items()}
            self._texts({name: str(text) for name, text in given.items() if name is not None})
        layers = value.get("layers", None if texts is not None else value)
        if isinstance(layers, dict):
            self._add(lambda: self._layers(layers))
        elif layers is not None:
            self._complain(f'"layers" must be an object with layer names as keys, not {shown(layers)}')

    def _layers(self, given: dict[str, Any]) -> Candidate:
        """Return the candidate with changed schedule fields; raise InputError if they are invalid."""
        layers: dict[str, LayerSchedule] = {}
        changes = []
        for name, values in given.items():
            if name not in self.answers.layers:
                raise InputError(
                    f"layer {shown(name)} does not exist; layers: {', '.join(self.answers.layers)}"
                )
            now = asdict(self.task.schedule.layers[name])
            if not isinstance(values, dict):
                raise InputError(f"layer {name!r}: its fields must be a JSON object, not {shown(values)}")
            layers[name] = layer_schedule(name, now | values, version=2)
            changed = {key: value for key, value in asdict(layers[name]).items() if now[key] != value}
            for key in changed.keys() & self.answers.frozen:
                raise InputError(f"layer {name!r}: {key} must not be changed")
            changes += [f"{key} of {name}: {now[key]} -> {value}" for key, value in changed.items()]
        if not changes:
            raise InputError("the answer changes nothing")
        return self.task.with_layers(layers, self.generator, "; ".join(changes)[:_MAX_DESCRIPTION_CHARACTERS])

    def _add(self, make: Callable[[], Candidate]) -> None:
        try:
            if len(self.found.candidates) < _MAX_ITEMS:
                self.found.candidates.append(make())
        except InputError as error:
            self._complain(str(error))

    def _complain(self, message: str) -> None:
        if len(self.found.complaints) < _MAX_ITEMS:
            self.found.complaints.append(message)


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
    """Return the grammar as a JSON schema, with programs as strings."""
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


def request_fields(request_field: str | None, answers: AnswerGrammar) -> dict[str, Any]:
    """Return the request fields that contain the grammar of answers; empty if `request_field` is None."""
    if request_field is None:
        return {}
    if request_field == "response_format":
        named = {"name": "candidate", "schema": schema(answers)}
        return {request_field: {"type": "json_schema", "json_schema": named}}
    return {
        request_field: {"grammar": gbnf(answers)} if request_field == "structured_outputs" else gbnf(answers)
    }


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
