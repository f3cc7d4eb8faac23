"""Prompts have the expected contents, and omit parts if the context is short."""

from dataclasses import replace

from compiler.llm.endpoint.client import estimated_tokens
from compiler.llm.endpoint.model import Chat
from compiler.llm.endpoint.prompt import MeasuredExample, cut_page, prompt_for, whole_page
from compiler.tuning.constraints import Constraints
from compiler.tuning.generators.generator import GeneratorTask


def texts(task: GeneratorTask, room: int, examples: tuple[MeasuredExample, ...] = ()) -> tuple[str, str]:
    prompt = prompt_for(task, list(examples), room)
    assert prompt is not None
    system, user = (message["content"] for message in prompt.messages)
    assert [message["role"] for message in prompt.messages] == ["system", "user"]
    assert estimated_tokens(system) + estimated_tokens(user) <= room
    return system, user


def test_complete_prompt(task: GeneratorTask) -> None:
    system, user = texts(task, 28_000)
    first, second = task.layers
    for words in (
        "`fuse.post_bias`",
        "`sltu d, a, b, imm`",
        "prefetch : int",
        "Defaults: rows=65536",
        "root ::= block+",
    ):
        assert words in system
    for words in (
        f'"{first}": conv2d',
        "8x8x16 i8",
        "weights=16x3x3x16",
        '"rows": 4',
        f"{task.measured.cycles:,} cycles",
        f"the lower bound is {task.measured.floor:,} cycles",
        f"Bottleneck of these layers: {task.bound}",
        "n=16, bus_bytes=16, sp_bytes=262144",
        "100 cycles from an address",
        "16 bytes per cycle",
        "```asm\n.name",
        "Goal: latency",
        f'"{second}": {task.measured.layers[1].cycles:,} cycles',
    ):
        assert words in user, words
    assert "Counters" not in system and "Earlier measurements" not in user


def test_measured_examples(task: GeneratorTask) -> None:
    first = task.layers[0]
    changed = task.with_layers({first: replace(task.schedule.layers[first], rows=9)}, "", "").schedule
    _, user = texts(task, 28_000, (MeasuredExample(changed, 1234.0), MeasuredExample(task.schedule, 1380.0)))
    assert f'{{"{first}": {{"rows": 9}}}}: 1,234 cycles\nunchanged: 1,380 cycles' in user
    written = task.with_texts(task.programs, "", "").schedule
    assert "unchanged with other programs" in texts(task, 28_000, (MeasuredExample(written, 1.0),))[1]


def test_short_context_shortens_the_prompt(task: GeneratorTask) -> None:
    whole, _ = texts(task, 28_000)
    cut, programs = texts(task, 12_000)
    assert (
        "`fuse.post_bias`" not in cut
        and "`matrix.a_base`" in cut
        and ".name" in programs
        and len(cut) < len(whole)
    )
    alone, without = texts(task, 5_000)
    assert "`matrix.a_base`" not in alone and "```asm" not in alone + without and "rows : int" in alone
    assert prompt_for(task, [], 1_000) is None


def test_forbidden_fields(task: GeneratorTask) -> None:
    forbidden = Constraints(frozenset({"micro-program", "tiling"}))
    system, user = texts(replace(task, constraints=forbidden), 28_000)
    assert (
        "```asm" not in system + user
        and "These fields must not be changed: columns, depth, param_blocks, rows, rows_per_load" in system
    )
    assert '"\\"rows_per_load\\""' not in system and '"\\"order\\""' in system


def test_instruction_page_is_reduced_to_used_fields() -> None:
    page = cut_page([".name x\n    set load.dram, op0\n    set fuse.src, a_src=sp\n    halt\n"])
    assert "`load.dram`" in page and "`a_src`" in page and "`halt`" in page and "### STORE" in page
    assert "`load.len`" not in page and "`a_dtype`" not in page and "`ret`" not in page
    lines = page.splitlines()
    heads = [number for number, line in enumerate(lines) if line.startswith("| ---")]
    assert all(lines[number + 1].startswith("|") for number in heads) and len(page) < len(whole_page()) / 5
    every = cut_page([whole_page().replace("`", " ")])
    assert all(line in every for line in whole_page().splitlines() if line.startswith("| ") and "`" in line)


def test_long_chat_drops_its_middle() -> None:
    beginning = [{"role": "system", "content": "a" * 300}]
    chat = Chat(beginning, 400)
    for number in range(9):
        chat.add(f"answer {number} " + "x" * 90, f"reply {number}")
    found = chat.messages
    assert found[0] == beginning[0] and [each["role"] for each in found[1:]] == ["assistant", "user"] * (
        len(found) // 2
    )
    assert found[-1]["content"] == "reply 8" and 3 < len(found) < 19
    chat.add("x" * 100_000, "y" * 100_000)
    assert sum(estimated_tokens(each["content"]) for each in chat.messages) <= 400
    chat.add("", "next")
    assert all(each["content"] for each in chat.messages) and chat.messages[-1]["content"] == "next"
