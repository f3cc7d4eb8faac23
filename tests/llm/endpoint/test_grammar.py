"""The grammar of answers permits all valid answers and excludes as many invalid ones as possible."""

import json
from dataclasses import asdict

from compiler.llm.endpoint.answers import AnswerGrammar, gbnf, request_fields, schema
from compiler.llm.endpoint.prompt import short_text
from compiler.schedule.schedule import LayerSchedule
from compiler.tuning.generators.generator import GeneratorTask
from hw.isa.assembler import assemble
from hw.isa.disassembler import disassemble
from hw.isa.micro_instruction import FORMS
from tests.llm.endpoint.gbnf import pattern

ODD = 'a "layer"\\with it all'
EVERYTHING = """\
.name {name}
L0:
    add r1, r2, op0, -4
    slt r3, %fuse_max, 9
    set fuse.src, a_src=sp op=add
    set load.word, default
    set load.dram, r0, op1, 216
    beq r1, r0, L0
    loop r2, 3, L1
    issue fuse, wait(load:0, matrix:3), signal(seq:1)
    wait fuse:1
L1:
    fence load, store
    clear matrix
    tag 3
    call L1
    callp 2, 0
    break L1
    trap 7
    ret
    halt
"""


def schedule_block(layers: dict) -> str:
    return f"```json\n{json.dumps({'layers': layers})}\n```\n"


def test_valid_and_invalid_schedules() -> None:
    fits = pattern(gbnf(AnswerGrammar(("conv", ODD), (), frozenset({"own_counter_tag"}))))
    every = asdict(LayerSchedule())
    del every["own_counter_tag"]
    assert fits.fullmatch(schedule_block({ODD: {"rows": 3, "fold_kernel_width": True}, "conv": every}))
    for bad in (
        {"other": {"rows": 3}},
        {"conv": {"own_counter_tag": True}},
        {"conv": {"rows": "3"}},
        {"conv": {"fold_kernel_width": 1}},
        {"conv": {}},
        {"conv": {"order": "up"}},
    ):
        assert not fits.fullmatch(schedule_block(bad)), bad
    assert not fits.fullmatch("```asm\n.name conv\nhalt\n```\n")


def test_every_instruction_is_permitted() -> None:
    fits = pattern(gbnf(AnswerGrammar(("conv",), ("conv",))))
    text = EVERYTHING.format(name="conv")
    program = assemble(text)
    assert len(program.words) == 18
    plain = "\n".join(line.strip() for line in text.splitlines())
    assert fits.fullmatch(f"```asm\n{plain}\n```\n") and fits.fullmatch(
        f"```asm\n{short_text(disassemble(program))}```\n"
    )
    for op in FORMS:
        assert op.name.lower() in gbnf(AnswerGrammar(("conv",), ("conv",)))
    for bad in ("stop", "set load.speed, 1", "issue add", "add 3, r1"):
        assert not fits.fullmatch(f"```asm\n.name conv\n{bad}\n```\n"), bad


def test_schedules_and_programs_of_the_compiler(task: GeneratorTask) -> None:
    fits = pattern(gbnf(AnswerGrammar(task.layers, tuple(task.programs))))
    layers = {name: asdict(layer) for name, layer in task.schedule.layers.items()}
    programs = "".join(short_text(text) for text in task.programs.values())
    assert fits.fullmatch(schedule_block(layers) + f"```asm\n{programs}```\n")


def test_short_texts_assemble_identically(task: GeneratorTask) -> None:
    for text in (*task.programs.values(), disassemble(assemble(EVERYTHING.format(name="x")))):
        assert assemble(short_text(text)).words == assemble(text).words
        assert len(short_text(text)) < len(text) / 2


def test_request_fields_for_the_grammar() -> None:
    answers = AnswerGrammar(("conv",), ("main",))
    assert request_fields(None, answers) == {}
    text = gbnf(answers)
    assert request_fields("grammar", answers) == {"grammar": text}
    assert request_fields("guided_grammar", answers) == {"guided_grammar": text}
    assert request_fields("structured_outputs", answers) == {"structured_outputs": {"grammar": text}}
    asked = request_fields("response_format", answers)["response_format"]
    assert asked["type"] == "json_schema" and asked["json_schema"]["schema"] == schema(answers)
    layer = schema(answers)["properties"]["layers"]["properties"]["conv"]
    assert layer["properties"].keys() == vars(LayerSchedule()).keys() and layer["properties"][
        "fold_kernel_width"
    ] == {"type": "boolean"}
    assert schema(answers)["properties"]["programs"]["properties"] == {"main": {"type": "string"}}
