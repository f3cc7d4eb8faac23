"""Candidates are found anywhere in an answer's text and checked strictly; errors are returned as complaints."""

import json
import random
from dataclasses import replace

import pytest

from compiler.llm.endpoint.answers import AnswerGrammar, EndpointAnswer, read_answer
from compiler.schedule.schedule import LayerSchedule
from compiler.tuning.generators.generator import GeneratorTask

CHANGES = {"rows": 3, "order": "channels"}


@pytest.fixture
def answers(task: GeneratorTask) -> AnswerGrammar:
    return AnswerGrammar(task.layers, tuple(task.programs), frozenset({"own_counter_tag"}))


def read(task: GeneratorTask, answers: AnswerGrammar, text: str) -> EndpointAnswer:
    return read_answer(task, answers, text, "test")


@pytest.mark.parametrize(
    "around",
    [
        "{}",
        "```json\n{}\n```",
        "```\n{}\n```",
        "I think:\n\n```json\n{}",
        "So [1] it is {} (rows down), isn't it?",
        '<think>{{"layers": 3}} or halt?</think>{}',
        "[{}]",
        '{{"candidates": [{}]}}',
        "```JSON\r\n{}\r\n```",
    ],
)
def test_schedules_are_found_in_text(task: GeneratorTask, answers: AnswerGrammar, around: str) -> None:
    first, second = task.layers
    found = read(task, answers, around.format(json.dumps({"layers": {first: CHANGES}})))
    (candidate,) = found.candidates
    assert not found.complaints and candidate.generator == "test"
    assert candidate.schedule.layers[first] == replace(task.schedule.layers[first], rows=3, order="channels")
    assert candidate.schedule.layers[second] == task.schedule.layers[second]
    assert candidate.description == f"rows of {first}: 4 -> 3; order of {first}: rows -> channels"


def test_key_layers_is_optional(task: GeneratorTask, answers: AnswerGrammar) -> None:
    first, second = task.layers
    found = read(task, answers, json.dumps({first: CHANGES, second: {"rows": 1}}))
    assert found.candidates[0].schedule.layers[second].rows == 1 and not found.complaints


def test_programs_are_found(task: GeneratorTask, answers: AnswerGrammar) -> None:
    ((name, text),) = task.programs.items()
    for answer in (
        text,
        f"```asm\n{text}```",
        f"Here:\n```\n{text}",
        json.dumps({"programs": {name: text}}),
        f"```asm\n{text.split(chr(10), 1)[1]}\n```",
    ):
        found = read(task, answers, answer)
        (candidate,) = found.candidates
        assert not found.complaints and "halt" in candidate.schedule.programs[name].text
    both = read(task, answers, f"```asm\n{text}```\nor\n```asm\n{text}\n; again\n```")
    assert len(both.candidates) == 2
    mixed = read(
        task, answers, f'```json\n{{"layers": {{"{task.layers[0]}": {{"rows": 3}}}}}}\n```\n```asm\n{text}```'
    )
    assert sorted(bool(each.schedule.programs) for each in mixed.candidates) == [False, True]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "neither a JSON object with layers nor a program"),
        ("I cannot help with that.", "neither"),
        ('```json\n{"layers": {"x": \n```', "truncated or malformed"),
        ('{"layers": {"nobody": {"rows": 1}}}', "layer 'nobody' does not exist; layers:"),
        ('{"layers": [1]}', '"layers" must be an object with layer names as keys, not [1]'),
        ('{"layers": {"FIRST": 3}}', "its fields must be a JSON object, not 3"),
        ('{"layers": {"FIRST": {"rows": 0}}}', "rows must be at least 1, not 0"),
        ('{"layers": {"FIRST": {"rows": 1e3}}}', "rows must be an integer, not 1000.0"),
        ('{"layers": {"FIRST": {"rows": true}}}', "rows must be an integer, not True"),
        ('{"layers": {"FIRST": {"speed": 9}}}', "must have fields among"),
        ('{"layers": {"FIRST": {"own_counter_tag": false}}}', "own_counter_tag must not be changed"),
        ('{"layers": {"FIRST": {}}}', "the answer changes nothing"),
        ('{"layers": {}}', "the answer changes nothing"),
        ('{"candidates": [3]}', "a proposal must be a JSON object, not 3"),
        ("```asm\n.name someone else\nhalt\n```", "program 'someone else' does not exist; programs:"),
        ('{"programs": {"nobody": "halt"}}', "program 'nobody' does not exist; programs:"),
    ],
)
def test_invalid_answers_give_complaints(
    task: GeneratorTask, answers: AnswerGrammar, text: str, words: str
) -> None:
    found = read(task, answers, text.replace("FIRST", task.layers[0]))
    assert not found.candidates and any(words in each for each in found.complaints), found


def test_programs_are_rejected_if_none_were_shown(task: GeneratorTask) -> None:
    ((_, text),) = task.programs.items()
    found = read(task, AnswerGrammar(task.layers), text)
    assert not found.candidates and "no program may be changed" in found.complaints[0]


def test_number_of_candidates_and_complaints_is_limited(task: GeneratorTask, answers: AnswerGrammar) -> None:
    lots = "".join(json.dumps({"layers": {task.layers[0]: {"rows": rows}}}) for rows in range(3, 99))
    assert len(read(task, answers, lots).candidates) == 8
    assert len(read(task, answers, '{"layers": {"x": 1}} ' * 99).complaints) == 8


def test_reading_any_answer_does_not_raise(task: GeneratorTask, answers: AnswerGrammar) -> None:
    """Random sequences of answer fragments, and long answers that could slow a parser, raise no exception."""
    seed = 4
    print(f"seed {seed}")
    rng = random.Random(seed)
    ((name, text),) = task.programs.items()
    pieces = [
        "```",
        "```json\n",
        "```asm\n",
        "{",
        "}",
        "[",
        "]",
        '"layers"',
        ":",
        ",",
        "1" * 5000,
        "null",
        "\n",
        " ",
        text[:300],
        f".name {name}\n",
        "halt\n",
        '"\\ud800"',
        f'"{task.layers[0]}"',
        '{"rows": 3}',
        "\0",
        "\u2028",
        "<think>",
        "</think>",
    ]
    for _ in range(300):
        read(task, answers, "".join(rng.choices(pieces, k=rng.randint(1, 24))))
    for long in (
        "\n" * 200_000,
        "{" * 200_000,
        "```" * 100_000,
        " " * 200_000,
        '{"a":' * 100_000,
        ".name\n" * 20_000,
    ):
        read(task, answers, long)


def test_every_field_may_be_given(task: GeneratorTask) -> None:
    first = task.layers[0]
    fields = vars(LayerSchedule())
    (candidate,) = read(task, AnswerGrammar(task.layers), json.dumps({"layers": {first: fields}})).candidates
    assert candidate.schedule.layers[first] == LayerSchedule()
