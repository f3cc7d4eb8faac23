"""Prompts for a remote model: rules, instruction set, task and examples, shortened to fit the context."""

import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import Enum
from functools import cache
from typing import Any

from compiler.layers.base import Image, Layer
from compiler.llm.endpoint.answers import AnswerGrammar, gbnf
from compiler.llm.endpoint.client import Message, estimated_tokens
from compiler.profile.measurement import LayerCycles, Measurement, Rejected, Result
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning.constraints import Objective
from compiler.tuning.generators.generator import Candidate, GeneratorTask
from hw.isa import reference
from hw.isa.micro_instruction import FORMS, MicroOp

#: Layer fields that are described separately.
_SEPARATE_FIELDS = ("name", "nodes", "ops", "x", "y", "shapes", "macs")


def machine_facts(task: GeneratorTask) -> str:
    """Describe the hardware configuration and its memory."""
    config, dram = task.conditions.config, task.conditions.dram
    values = {item.name: getattr(config, item.name) for item in fields(config)} | {
        "bus_bytes": config.beat_bytes
    }
    sizes = ", ".join(f"{name}={_plain(value)}" for name, value in values.items())
    return (
        f"Machine (N = {config.n}, an array of {config.n}x{config.n}): {sizes}.\n"
        f"DRAM: {dram.latency} cycles from an address to its first beat, {task.conditions.rate:g} bytes per cycle for "
        "reads and writes together."
    )


def layer_facts(task: GeneratorTask) -> str:
    """Describe each layer: operation, current cost, lower bound and schedule."""
    config = task.conditions.config
    floors = {info.name: info.floor.cycles(config, task.conditions.rate) for info in task.network.infos}
    lines = []
    for layer in task.network.layers:
        if layer.name in task.layers:
            lines.append(f"{_quoted(layer.name)}: {_described(layer)}")
            lines.append(f"  lower bound: {floors[layer.name]:,} cycles")
            lines.append(f"  current schedule: {schedule_text(task.schedule.layers[layer.name])}")
    return "\n".join(lines)


def profile_facts(task: GeneratorTask) -> str:
    """Describe the cycles by cause and the objective."""
    entries = [entry for entry in task.measured.layers if set(entry.names) & set(task.layers)]
    lines = [f"{' + '.join(map(_quoted, entry.names))}: {cycles_text(entry)}" for entry in entries]
    unit, cost = cost_unit(task.goal), task.goal.cost(task.measured)
    return "\n".join(
        [
            *lines,
            f"Bottleneck of these layers: {task.bound}.",
            f"The whole network: {task.measured.cycles:,} cycles, {task.measured.energy_uj:.3f} uJ; "
            f"the lower bound is {task.measured.floor:,} cycles. "
            f"Goal: {task.goal.value}, currently {cost:,.6g} {unit}; lower is better.",
        ]
    )


def schedule_fields() -> str:
    """Describe the fields of a layer schedule."""
    text = inspect.getdoc(LayerSchedule) or ""
    defaults = ", ".join(f"{item.name}={_plain(item.default)}" for item in fields(LayerSchedule))
    return f"{text}\n\nDefaults: {defaults}."


def schedule_text(schedule: LayerSchedule, base: LayerSchedule | None = None) -> str:
    """Return a layer schedule as JSON; if `base` is given, only the fields that differ from it."""
    before: Mapping[str, Any] = {} if base is None else asdict(base)
    return json.dumps(
        {name: value for name, value in asdict(schedule).items() if base is None or before[name] != value}
    )


def cycles_text(entry: LayerCycles) -> str:
    """Return the cycles of a layer by cause."""
    causes = ", ".join(f"{name} {value:,}" for name, value in entry.where.items() if value)
    return f"{entry.cycles:,} cycles ({causes})"


def cost_unit(goal: Objective) -> str:
    """Return the unit of the cost."""
    return "uJ" if goal is Objective.ENERGY else "cycles"


def _described(layer: Layer) -> str:
    """Describe a layer in one line: operators, tensors, and attributes that are short."""
    more = {
        item.name: getattr(layer, item.name) for item in fields(layer) if item.name not in _SEPARATE_FIELDS
    }
    if more.get("weights") is not None:
        more["weights"] = "x".join(map(str, more["weights"].shape))
    attributes = [f"{name}={_plain(value)}" for name, value in more.items() if _small(value)]
    into = " and ".join(f"{_quoted(name)} {_image(layer.shapes.get(name))}" for name in layer.inputs)
    out = f"{_quoted(layer.y)} {_image(layer.shapes.get(layer.y))}"
    return f"{' + '.join(layer.ops)}, {into} -> {out}; {layer.macs:,} multiply-accumulates; {', '.join(attributes)}"


def _small(value: Any) -> bool:
    inner = value if isinstance(value, tuple) else (value,)
    return all(isinstance(each, (bool, int, float, str)) for each in inner)


def _image(image: Image | None) -> str:
    return "" if image is None else f"({image.h}x{image.w}x{image.c} {image.dtype.name.lower()})"


def _plain(value: Any) -> str:
    return value.name.lower() if isinstance(value, Enum) else str(value)


def _quoted(name: str) -> str:
    """Return a name from the compiled model, which may be any string, as a JSON string."""
    return json.dumps(name)


#: Number of examples of each kind.
_BEST_COUNT, _WORST_COUNT = 3, 2


@dataclass(frozen=True)
class MeasuredExample:
    """Measured schedule with correct outputs, and its cost."""

    schedule: Schedule
    cost: float


def best_and_worst(examples: Sequence[MeasuredExample]) -> list[MeasuredExample]:
    """Return the best and the worst examples, best first."""
    ordered = sorted(examples, key=lambda each: each.cost)
    return (
        ordered
        if len(ordered) <= _BEST_COUNT + _WORST_COUNT
        else ordered[:_BEST_COUNT] + ordered[-_WORST_COUNT:]
    )


def examples_text(task: GeneratorTask, examples: Sequence[MeasuredExample]) -> str:
    """Return one line per example: differences from the current schedule, and cost."""
    return "\n".join(
        f"{changes_text(task, each.schedule)}: {each.cost:,.6g} {cost_unit(task.goal)}"
        for each in best_and_worst(examples)
    )


def changes_text(task: GeneratorTask, schedule: Schedule) -> str:
    """Return the differences between a schedule and the current one as JSON, in the format of answers."""
    layers = {}
    for name, layer in schedule.layers.items():
        before = asdict(task.schedule.layers[name]) if name in task.schedule.layers else {}
        changed = {key: value for key, value in asdict(layer).items() if before.get(key) != value}
        if changed:
            layers[name] = changed
    return (json.dumps(layers) if layers else "unchanged") + _programs_text(task, schedule)


def _programs_text(task: GeneratorTask, schedule: Schedule) -> str:
    """Describe which programs differ from the current ones."""
    now, then = task.schedule.programs, schedule.programs
    names = [name for name in {**now, **then} if now.get(name) != then.get(name)]
    subject = "other programs" if then else "the compiler's own programs"
    return f" with {subject} {', '.join(map(json.dumps, names))}" if names else ""


#: Instructions whose last operand is an instruction index.
_JUMPS = frozenset(op.name.lower() for op in MicroOp if op in FORMS and "target" in FORMS[op].operands)
_JUMPS -= {"callp"}  # target in another program


def short_text(text: str) -> str:
    """Return a disassembled program without comments and indentation, with labels at jump targets."""
    heads, lines = [], []
    for line in text.splitlines():
        bare = line.split(";", 1)[0].strip()
        if bare:
            (heads if bare.startswith(".") and not bare.startswith(".word") else lines).append(bare)
    targets = {number for line in lines if (number := _target(line)) is not None and number <= len(lines)}
    out = list(heads)
    for number, line in enumerate(lines):
        out += [f"L{number}:"] * (number in targets)
        out.append(f"{line.rpartition(' ')[0]} L{_target(line)}" if _target(line) in targets else line)
    out += [f"L{len(lines)}:"] * (len(lines) in targets)
    return "\n".join(out) + "\n"


def _target(line: str) -> int | None:
    """Return the jump target of an instruction; None if the instruction has no jump target."""
    mnemonic, _, rest = line.partition(" ")
    last = rest.rpartition(",")[2].strip()
    return int(last) if mnemonic in _JUMPS and last.isdigit() else None


#: Sections of the instruction set page that are not needed to write programs.
_OMITTED_SECTIONS = ("Macro-instructions", "Counters", "Traps")
_NAMED = re.compile(r"\| `([^` ]+)[^`]*` \|")
_WORD = re.compile(r"[a-z_][a-z0-9_]*(?:\.[a-z0-9_]+)?")


@cache
def whole_page() -> str:
    """Return the part of the instruction set page about micro-programs."""
    parts = re.split(r"(?m)^(?=## )", reference.page())
    return "".join(
        part for part in parts if not part.startswith(tuple(f"## {name}" for name in _OMITTED_SECTIONS))
    )


def cut_page(programs: Iterable[str]) -> str:
    """Return `whole_page` with only the instructions and fields that the programs use; empty tables are removed."""
    used = {token for text in programs for token in _WORD.findall(text)}
    kept = [
        line for line in whole_page().splitlines() if not (found := _NAMED.search(line)) or found[1] in used
    ]
    return "\n".join(_without_empty(kept)) + "\n"


def _without_empty(lines: list[str]) -> Iterable[str]:
    """Yield the lines, omitting tables that have only a header."""
    for number, line in enumerate(lines):
        header = line.startswith("|") and not lines[number - 1].startswith("|")
        ruled = line.startswith("| ---")
        first = number + (2 if header else 1)
        empty = (header or ruled) and not (first < len(lines) and lines[first].startswith("|"))
        if not empty:
            yield line


#: Maximum characters of a reason, and number of layers whose cycles are listed.
_MAX_REASON_CHARACTERS, _MAX_LAYERS = 600, 4
_STAGES = {
    "compile": "it cannot be compiled",
    "validate": "the validator rejects it",
    "trap": "it caused a trap",
    "time": "it exceeded the time limit",
    "search": "it was not measured",
}


def verdict(task: GeneratorTask, candidate: Candidate, result: Result) -> str:
    """Describe the result of a candidate, with the reason for a rejection."""
    return f"{candidate.description}: {_outcome(task, result)}"


def _outcome(task: GeneratorTask, result: Result) -> str:
    if isinstance(result, Rejected):
        reason = (
            result.reason
            if len(result.reason) <= _MAX_REASON_CHARACTERS
            else f"{result.reason[:_MAX_REASON_CHARACTERS]}..."
        )
        return f"{_STAGES.get(result.stage, result.stage)}: {reason}"
    if not result.exact:
        return "its outputs are wrong: the changed commands compute or move other data than before"
    if not result.valid:
        return f"{result.cycles:,} cycles are fewer than the lower bound"
    now, before = task.goal.cost(result), task.goal.cost(task.measured)
    comparison = "better than" if now < before else "no better than"
    return f"{now:,.6g} {cost_unit(task.goal)}, {comparison} {before:,.6g}. {_by_layer(task, result)}"


def _by_layer(task: GeneratorTask, result: Measurement) -> str:
    """Describe the cycles of the layers that changed most."""
    before = {entry.names: entry for entry in task.measured.layers}
    pairs = [(before[entry.names], entry) for entry in result.layers if entry.names in before]
    changed = sorted((pair for pair in pairs if _difference(*pair)), key=lambda pair: -_difference(*pair))
    return "; ".join(
        f"{' + '.join(now.names)}: {cycles_text(was)} -> {cycles_text(now)}"
        for was, now in changed[:_MAX_LAYERS]
    )


def _difference(was: LayerCycles, now: LayerCycles) -> int:
    return abs(now.cycles - was.cycles)


#: Fraction of the prompt budget for the initial messages; the remaining tokens are for the subsequent chat.
_FIRST_MESSAGE_SHARE = 0.75

_RULES = """\
You optimize programs of a machine learning accelerator. Its units LOAD, MATRIX, FUSE and STORE run decoupled from
each other, ordered by semaphores; a compiler generates their programs from a schedule of each layer. You are given
layers of a network with their current schedules and their cycles by cause, and propose schedules or programs with a
lower cost. Each proposal is compiled, proved free of races, deadlocks and accesses out of bounds, and run on the
simulated machine; its outputs must be identical bit by bit. You receive the results, and propose further improvements.

Answer with one to four proposals, the most promising first, each in a separate block, in one of these forms:

1. Changed fields of schedules, by layer; omitted fields keep their values:
```json
{"layers": {"NAME OF LAYER": {"rows": 8, "order": "channels"}}}
```
"""
_ASSEMBLY = """
2. The complete text of one or more programs, which replace the current ones:
```asm
.name NAME OF PROGRAM
    set load.len, 16
    ...
    halt
```
Do not change DRAM addresses (op0, op1, ...) or values written to memory.
"""


@dataclass(frozen=True)
class Prompt:
    """Initial messages of a chat.

    Parameters
    ----------
    messages : list of Message
        System message and user message.
    answers : AnswerGrammar
        Schedule fields and programs that answers may change.
    """

    messages: list[Message]
    answers: AnswerGrammar


def prompt_for(task: GeneratorTask, examples: list[MeasuredExample], room: int) -> Prompt | None:
    """Return the most complete prompt within its share of `room` tokens; None if all variants exceed the share.

    The instruction set page is first reduced to the instructions in use; then the programs and the page are omitted.
    """
    for answers, page, programs in _variants(task):
        system, user = _rules(answers, page), _asked(task, examples, programs)
        if estimated_tokens(system) + estimated_tokens(user) <= room * _FIRST_MESSAGE_SHARE:
            messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
            return Prompt(messages, answers)
    return None


def _variants(task: GeneratorTask) -> Iterator[tuple[AnswerGrammar, str, dict[str, str]]]:
    """Yield combinations of answer grammar, instruction set page and programs, most complete first."""
    frozen = task.constraints.frozen_fields
    if "micro-program" not in task.constraints.forbidden:
        programs = {name: short_text(text) for name, text in task.programs.items()}
        for page in (whole_page(), cut_page(programs.values())):
            yield AnswerGrammar(task.layers, tuple(programs), frozen), page, programs
    yield AnswerGrammar(task.layers, (), frozen), "", {}


def _rules(answers: AnswerGrammar, page: str) -> str:
    parts = [_RULES + (_ASSEMBLY if answers.programs else "")]
    if answers.frozen:
        parts.append(f"These fields must not be changed: {', '.join(sorted(answers.frozen))}.")
    parts.append(f"The grammar of answers, which other text may surround:\n\n{gbnf(answers)}")
    parts.append(f"The fields of a layer's schedule:\n\n{schedule_fields()}")
    return "\n\n".join([*parts, page] if page else parts)


def _asked(task: GeneratorTask, examples: list[MeasuredExample], programs: dict[str, str]) -> str:
    parts = [
        machine_facts(task),
        f"The layers:\n{layer_facts(task)}",
        f"Their cycles by cause:\n{profile_facts(task)}",
    ]
    if examples:
        parts.append(f"Earlier measurements:\n{examples_text(task, examples)}")
    if programs:
        parts.append("The programs:\n" + "\n".join(f"```asm\n{text}```" for text in programs.values()))
    return "\n\n".join([*parts, "Propose changes with a lower cost."])
