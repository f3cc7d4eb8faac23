"""Programs that the abstract machine restricts contain nothing that the validator rejects."""

import numpy as np
import pytest

from compiler.llm.assembly.grammar import AssemblyGrammar, GrammarState
from compiler.llm.assembly.limits import ProgramLimits
from compiler.llm.assembly.tokenizer import decode_program, encode_program
from compiler.llm.generate.program_request import limits_in_place
from compiler.llm.tokens.assembly_tokens import HEADS
from compiler.runtime.validation import stage_calls
from compiler.validate import MacroCall, validate
from hw.config import load_target
from hw.isa.assembler import assemble
from hw.isa.micro_instruction import MicroOp
from scripts.networks.digits import MODEL
from tests.kernel_library.test_on_rtl import OPERATIONS
from tests.llm.program_sampling import VOCABULARY, accepts, compiled, draw_program, library
from tests.support.trained_networks import model
from tests.validate.test_kernel_library import Recorder

N4 = load_target("n4")
WINDOWS = ((0x1000, 0x8FFF, 3), (0x9000, 0x9FFF, 1))
OPERANDS = (0x1000, 0x9000, None)
_COMMAND_WEIGHTS = {MicroOp.ISSUE: 20.0, MicroOp.LOOP: 4.0, MicroOp.HALT: 0.1}


def limits(**options) -> ProgramLimits:
    settings = {"config": N4, "operands": OPERANDS, "windows": WINDOWS, "tokens": 150}
    return ProgramLimits(**(settings | options))


def after(text: str, **options) -> GrammarState:
    """Return the state of the grammar after the given instructions."""
    return accepts(AssemblyGrammar(VOCABULARY, limits(**options)), encode_program(assemble(text))[:-1])


def may(state: GrammarState, word: str) -> bool:
    return bool(state.mask[VOCABULARY.number(word)])


def prefer_commands(word: str) -> float:
    """Return the weight of a word; commands and loops have higher weights."""
    if word.startswith(("wait(", "signal(")):
        return 3.0
    return _COMMAND_WEIGHTS.get(HEADS[word].op, 0.5) if word in HEADS else 1.0


@pytest.mark.parametrize("target", ["n4", "n16", "n32"])
def test_random_programs_pass_the_validator(target: str, rng: np.random.Generator) -> None:
    config = load_target(target)
    grammar = AssemblyGrammar(VOCABULARY, limits(config=config, instructions=60))
    commands = 0
    for _ in range(6):
        state, words = draw_program(grammar, rng, prefer_commands)
        program = state.program("drawn")
        assert len(words) <= 150 and len(program.words) <= 60
        assert decode_program(words, "drawn") == program
        report = validate(config, [MacroCall(program, OPERANDS)], WINDOWS)
        commands += sum(report.commands.values())
    assert commands


@pytest.mark.parametrize("name", ["digits", "ad01_int8"])
def test_programs_of_networks_can_be_written_in_place(name: str) -> None:
    network = compiled(MODEL if name == "digits" else model(name))
    for stage in network.walk():
        if not stage.code:
            continue
        work = stage_calls(network, stage, stage.code)
        for index in range(min(3, len(work.calls))):
            words = encode_program(work.calls[index].program)
            own = limits_in_place(network.config, work.calls, work.windows, index, tokens=len(words) + 200)
            accepts(AssemblyGrammar(VOCABULARY, own), words).program("again")


def test_replacement_program_leaves_the_same_tokens(rng: np.random.Generator) -> None:
    before = MacroCall(assemble("issue matrix, signal(fuse:0)\nhalt"))
    own = MacroCall(assemble("issue matrix, signal(fuse:3, seq:1)\nissue fuse, wait(matrix:3)\nhalt"))
    after = MacroCall(
        assemble("fence load, matrix, fuse, store\nwait matrix:1\nissue fuse, wait(matrix:0)\nhalt")
    )
    validate(N4, [before, own, after], WINDOWS)
    place = limits_in_place(N4, [before, own, after], WINDOWS, 1, tokens=80)
    assert place.leaves == {(1, 2, 0): 1, (1, 4, 1): 1}
    grammar = AssemblyGrammar(VOCABULARY, place)
    for _ in range(100):
        state, _ = draw_program(grammar, rng, prefer_commands)
        validate(N4, [before, MacroCall(state.program("drawn")), after], WINDOWS)


def test_ranges_of_fields() -> None:
    state = after("set fuse.bias, 1")
    for word in ("set load.dst", "x3"):
        assert may(state, word) == (word != "x3")  # the scratchpad has only 64 KiB
        if word != "x3":
            state.advance(VOCABULARY.number(word))
    state = accepts(AssemblyGrammar(VOCABULARY, limits()), ["set load.len"])
    assert not may(state, "0") and may(state, "1") and may(state, "r4")
    state = accepts(AssemblyGrammar(VOCABULARY, limits()), ["set matrix.n_cols"])
    assert may(state, "4") and not may(state, "5")
    state = accepts(AssemblyGrammar(VOCABULARY, limits()), ["tag"])
    assert may(state, str(N4.tags - 1)) and not may(state, str(N4.tags))
    state = accepts(AssemblyGrammar(VOCABULARY, limits()), ["set fuse.src"])
    assert may(state, "b_src=sp") and not may(state, "b_src=3")


def test_operands_registers_and_statistics() -> None:
    for written in (False, True):
        state = accepts(
            AssemblyGrammar(VOCABULARY, limits(written=written)),
            ["add", "r4", "1", "issue fuse", "set load.dst"],
        )
        assert may(state, "op2") and not may(state, "op3") and may(state, "%n")
        assert may(state, "r4") and may(state, "r5") == (not written)
        assert not may(state, "%cycle") and not may(state, "%fuse_max") and may(state, "%matrix_zeros")
    state = after("issue fuse\nfence fuse")
    state.advance(VOCABULARY.number("tag"))
    assert may(state, "%fuse_max")


def test_commands_that_would_trap_cannot_be_issued() -> None:
    assert not may(after("set load.len, 4"), "issue load")  # DRAM addresses from 0 are outside all windows
    assert may(after("set load.dram, r0, op0"), "issue load")
    assert may(after("set load.dram, r0, op1"), "issue load")
    assert not may(after("set store.dram, r0, op1"), "issue store")  # read-only
    assert not may(after("set load.dram, r0, op2"), "issue load")  # may be any address
    assert not may(after("set matrix.x_count, 60000\nset matrix.acc_x, 1"), "issue matrix")


def test_commands_that_race_must_wait() -> None:
    state = after("issue matrix, signal(fuse:2)")
    assert may(state, "issue fuse")
    state.advance(VOCABULARY.number("issue fuse"))
    assert not may(state, "halt") and not may(state, "signal(load:0)") and not may(state, "wait(matrix:1)")
    state.advance(VOCABULARY.number("wait(matrix:2)"))
    assert may(state, "halt") and may(state, "signal(load:0)")
    assert not may(after("issue matrix"), "issue fuse")
    assert may(after("issue matrix\nfence matrix"), "issue fuse")


def test_missing_tokens_cannot_be_awaited() -> None:
    assert not may(after("issue matrix"), "wait matrix:1")
    state = after("issue matrix, signal(seq:1)")
    assert may(state, "wait matrix:1") and not may(state, "halt")
    state.advance(VOCABULARY.number("wait matrix:1"))
    assert may(state, "halt")


def test_limits_of_loops() -> None:
    text = "loop 2, e\nloop 2, e\nloop 2, e\nadd r1, r1, 1\ne: tag 0"
    words = encode_program(assemble(text))
    inside = words[: words.index("end")]
    grammar = AssemblyGrammar(VOCABULARY, limits(config=load_target("n16")))
    assert may(accepts(grammar, inside), "loop")
    assert not may(accepts(grammar, [*inside, "loop", "2", "tag", "0"]), "loop")  # at most four
    # The second iteration would leave the scratchpad.
    text = "set store.dram, r0, op0\nloop 2, e\nadd r1, r1, 60000\nset store.src, r1\nissue store\ne: tag 0"
    words = encode_program(assemble(text))
    assert not may(accepts(AssemblyGrammar(VOCABULARY, limits()), words[: words.index("end")]), "end")
    small = encode_program(assemble(text.replace("60000", "30000")))
    assert may(accepts(AssemblyGrammar(VOCABULARY, limits()), small[: small.index("end")]), "end")


def test_jumps_can_be_excluded() -> None:
    state = AssemblyGrammar(VOCABULARY, limits()).start()
    jumping = AssemblyGrammar(VOCABULARY, limits(jumps=True)).start()
    for word, head in HEADS.items():
        if head.op in (MicroOp.BNE, MicroOp.CALL, MicroOp.RET, MicroOp.BREAK, MicroOp.TRAP):
            assert not may(state, word) and may(jumping, word)


def test_resident_programs_can_be_written() -> None:
    operators = Recorder(load_target("n16"))
    for operation in OPERATIONS:
        operation(operators, np.random.default_rng(5))
    calls = {call.program.name: call for call in operators.calls}
    assert len(calls) == len(library())
    for call in calls.values():
        own = ProgramLimits(
            config=operators.config,
            operands=call.operands,
            windows=operators.windows,
            jumps=True,
            tokens=2000,
        )
        state = accepts(AssemblyGrammar(VOCABULARY, own), encode_program(call.program))
        assert state.program("again").words == call.program.words


@pytest.mark.parametrize("tokens", [2, 9, 60])
def test_random_words_with_jumps_are_programs(tokens: int, rng: np.random.Generator) -> None:
    grammar = AssemblyGrammar(VOCABULARY, limits(jumps=True, tokens=tokens))
    for _ in range(5):
        state, words = draw_program(grammar, rng)
        assert len(words) <= tokens
        assert state.program("drawn").words[-1] >> 58 in (MicroOp.HALT, MicroOp.RET, MicroOp.BEQ)
