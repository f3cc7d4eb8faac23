"""Prompt of a task: rules, instruction set, task description and examples, cut to the context."""

from collections.abc import Iterator
from dataclasses import dataclass

from compiler.llm.endpoint.budget import estimated_tokens
from compiler.llm.endpoint.client import Message
from compiler.llm.endpoint.grammar import AnswerGrammar, gbnf
from compiler.llm.endpoint.prompt_sections import (
    MeasuredExample,
    cut_page,
    examples_text,
    layer_facts,
    machine_facts,
    profile_facts,
    schedule_fields,
    short_text,
    whole_page,
)
from compiler.tuning.generators.task import GeneratorTask

#: Fraction of the prompt budget for the first message; the rest is for the following chat.
_FIRST = 0.75

_RULES = """\
You make programs of a machine learning accelerator faster. Its units LOAD, MATRIX, FUSE and STORE run decoupled from
each other, ordered by semaphores; a compiler makes their programs from a schedule of each layer. You are given some
layers of a network, how they are carried out now and where their cycles went, and propose how to carry them out at
less cost. Each proposal is compiled, proved free of races, deadlocks and accesses out of bounds, run on the simulated
machine, and its outputs must be the same bit by bit. You are told what came of it, and asked for better ones.

Answer with one to four proposals, the most promising first, each in a block of its own, in either form:

1. Changed fields of schedules, by layer; fields that you leave out stay as they are:
```json
{"layers": {"NAME OF LAYER": {"rows": 8, "order": "channels"}}}
```
"""
_ASSEMBLY = """
2. The whole text of one or more programs, in place of the present ones:
```asm
.name NAME OF PROGRAM
    set load.len, 16
    ...
    halt
```
Keep addresses in DRAM (op0, op1, ...) and every value written to memory as they are.
"""


@dataclass(frozen=True)
class Prompt:
    """Beginning of a chat.

    Parameters
    ----------
    messages : list of ChatMessage
        System message and user message.
    answers : AnswerGrammar
        Schedule fields and programs that answers may change.
    """

    messages: list[Message]
    answers: AnswerGrammar


def prompt_for(task: GeneratorTask, examples: list[MeasuredExample], room: int) -> Prompt | None:
    """Return the most complete prompt within its part of `room` tokens; None if even the shortest is too long.

    The instruction set page is first cut to the instructions in use, then programs and page are omitted.
    """
    for answers, page, programs in _ways(task):
        system, user = _rules(answers, page), _asked(task, examples, programs)
        if estimated_tokens(system) + estimated_tokens(user) <= room * _FIRST:
            messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
            return Prompt(messages, answers)
    return None


def _ways(task: GeneratorTask) -> Iterator[tuple[AnswerGrammar, str, dict[str, str]]]:
    """Yield combinations of answer grammar, instruction set page and programs, most complete first."""
    kept = task.constraints.kept
    if "micro-program" not in task.constraints.forbidden:
        programs = {name: short_text(text) for name, text in task.programs.items()}
        for page in (whole_page(), cut_page(programs.values())):
            yield AnswerGrammar(task.layers, tuple(programs), kept), page, programs
    yield AnswerGrammar(task.layers, (), kept), "", {}


def _rules(answers: AnswerGrammar, page: str) -> str:
    parts = [_RULES + (_ASSEMBLY if answers.programs else "")]
    if answers.kept:
        parts.append(f"These fields must not be changed: {', '.join(sorted(answers.kept))}.")
    parts.append(f"The grammar of answers, beside words around them:\n\n{gbnf(answers)}")
    parts.append(f"The fields of a layer's schedule:\n\n{schedule_fields()}")
    return "\n\n".join([*parts, page] if page else parts)


def _asked(task: GeneratorTask, examples: list[MeasuredExample], programs: dict[str, str]) -> str:
    parts = [
        machine_facts(task),
        f"The layers:\n{layer_facts(task)}",
        f"Where their cycles went:\n{profile_facts(task)}",
    ]
    if examples:
        parts.append(f"Measured before:\n{examples_text(task, examples)}")
    if programs:
        parts.append("The programs:\n" + "\n".join(f"```asm\n{text}```" for text in programs.values()))
    return "\n\n".join([*parts, "Propose something of less cost."])
