"""Parses candidates from the text of a model and checks them field by field."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from compiler.llm.endpoint.grammar import AnswerGrammar
from compiler.runtime.program_text import readable
from compiler.schedule.schedule import LayerSchedule, layer_schedule
from compiler.tuning.generators.task import Candidate, GeneratorTask
from hw.errors import InputError, shown

#: Maximum candidates and complaints per answer, and maximum positions where JSON is parsed.
_MOST, _PLACES = 8, 64
_FENCE = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)
_THOUGHT = "</think>"
_WHY = 120


@dataclass
class EndpointAnswer:
    """Parsed answer: candidates, and complaints about the rest."""

    candidates: list[Candidate] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


def read_answer(task: GeneratorTask, answers: AnswerGrammar, text: str, generator: str) -> EndpointAnswer:
    """Parse the candidates of an answer; any text is accepted.

    Parameters
    ----------
    task : GeneratorTask
        Task that the prompt was about.
    answers : AnswerGrammar
        Schedule fields and programs that answers may change.
    text : str
        Text written by the model.
    generator : str
        Generator name in the candidates.
    """
    reader = _Reader(task, answers, generator)
    reader.read(text.rpartition(_THOUGHT)[2])
    found = reader.found
    if not found.candidates and not found.complaints:
        found.complaints.append("there is neither a JSON object with layers nor a program in it")
    return found


class _Reader:
    """Parser of one answer."""

    def __init__(self, task: GeneratorTask, answers: AnswerGrammar, generator: str):
        self.task, self.answers, self.generator = task, answers, generator
        self.found = EndpointAnswer()

    def read(self, text: str) -> None:
        """Parse all code blocks, or anything that looks like one if there are none."""
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
        """Return program texts by name; None if the block has none."""
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
        """Return the program that a `.name` line refers to."""
        given = named[0].strip() if named else ""
        for name in self.answers.programs:
            if given in (name, readable(name)):
                return name
        known = ", ".join(map(repr, self.answers.programs)) or "none of which may be changed"
        self._complain(f"there is no program {shown(given)}, only {known}")
        return None

    def _texts(self, texts: Mapping[str, str]) -> None:
        if texts:
            texts = {name: text.encode(errors="replace").decode() for name, text in texts.items()}
            why = f"programs {', '.join(texts)} written anew"
            self._add(lambda: self.task.with_texts(texts, self.generator, why[:_WHY]))

    def _json(self, block: str) -> None:
        values = list(_values(block))
        if not values and block.lstrip().startswith("{"):
            self._complain("a JSON object in it is broken off or has a mistake")
        for value in values:
            for each in value if isinstance(value, list) else [value]:
                listed = each.get("candidates") if isinstance(each, dict) else None
                for candidate in listed if isinstance(listed, list) else [each]:
                    self._object(candidate)

    def _object(self, value: Any) -> None:
        """Add a candidate from a JSON object; the key `layers` is optional."""
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
            self._complain(f'"layers" must be an object by name of layer, not {shown(layers)}')

    def _layers(self, given: dict[str, Any]) -> Candidate:
        """Return the candidate of changed schedule fields; InputError if they are invalid."""
        layers: dict[str, LayerSchedule] = {}
        changes = []
        for name, values in given.items():
            if name not in self.answers.layers:
                raise InputError(
                    f"there is no layer {shown(name)} here, only {', '.join(self.answers.layers)}"
                )
            now = asdict(self.task.schedule.layers[name])
            if not isinstance(values, dict):
                raise InputError(f"layer {name!r}: its fields must be a JSON object, not {shown(values)}")
            layers[name] = layer_schedule(name, now | values, version=2)
            changed = {key: value for key, value in asdict(layers[name]).items() if now[key] != value}
            for key in changed.keys() & self.answers.kept:
                raise InputError(f"layer {name!r}: {key} must not be changed")
            changes += [f"{key} of {name}: {now[key]} -> {value}" for key, value in changed.items()]
        if not changes:
            raise InputError("nothing in it is other than now")
        return self.task.with_layers(layers, self.generator, "; ".join(changes)[:_WHY])

    def _add(self, make: Callable[[], Candidate]) -> None:
        try:
            if len(self.found.candidates) < _MOST:
                self.found.candidates.append(make())
        except InputError as error:
            self._complain(str(error))

    def _complain(self, what: str) -> None:
        if len(self.found.complaints) < _MOST:
            self.found.complaints.append(what)


def _values(text: str) -> Iterator[Any]:
    """Yield the outermost JSON objects and lists in a text."""
    decoder, at = json.JSONDecoder(), 0
    for _ in range(_PLACES):
        starts = [place for place in (text.find("{", at), text.find("[", at)) if place >= 0]
        if not starts:
            return
        try:
            value, at = decoder.raw_decode(text, min(starts))
        except (ValueError, RecursionError):
            at = min(starts) + 1
            continue
        if isinstance(value, dict) or any(isinstance(each, dict) for each in value):
            yield value
