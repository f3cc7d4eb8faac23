"""Tests of program edits that are encoded as words, of their grammar, and of the outlines of edited programs."""

import random
from collections.abc import Iterator

import pytest

from compiler.codegen.semaphores import Issued
from compiler.llm.generate.sampler import EditsGrammar
from compiler.llm.tokens.integer_tokens import decode_number, encode_number
from compiler.llm.tokens.program_tokens import (
    LAYER,
    MAX_EDITS,
    MORE,
    MOVE,
    SPLIT,
    SUMMARY,
    TIMES,
    canonical,
    decode_edits,
    encode_edits,
    index_from_nearer_end,
    summary_tokens,
)
from compiler.llm.tokens.schedule_delta import END
from compiler.llm.tokens.vocabulary import LANGUAGE
from compiler.tuning.edits.edit import (
    MAX_DIMS,
    Edit,
    EditError,
    Move,
    Split,
    apply_edits,
    dims_of,
    draw_edits,
    get,
)
from compiler.tuning.edits.editable_programs import EditablePrograms
from hw.config import MlaConfig
from hw.isa.enums import Unit
from tests.llm.lm_fixtures import pieces, workshop
from tests.support.seeds import random_seed


@pytest.fixture
def rng() -> random.Random:
    """Return a random generator seeded by MLA_SEED or, if that is unset, at random."""
    return random.Random(random_seed())


def values_of(commands: list[Issued]) -> list[tuple]:
    return [(each.unit, each.layer, each.values, each.region) for each in commands]


def random_edits(config: MlaConfig, commands: list[Issued], rng: random.Random) -> list[Edit]:
    """Return random edits in the canonical form that the model writes."""
    out: list[Edit] = []
    for _ in range(rng.randint(1, MAX_EDITS)):
        found = draw_edits(config, commands, rng)
        if found is None:
            break
        edit = canonical(found[0], commands, config.n)
        assert values_of(apply_edits(config, commands, [edit])) == values_of(found[1]), (found[0], edit)
        out.append(edit)
        commands = found[1]
    return out


def test_edits_round_trip_and_conform_to_the_grammar(rng: random.Random) -> None:
    count = 0
    for made, piece in pieces():
        commands = list(piece.unrolled.commands)
        for _ in range(5):
            edits = random_edits(made.config, commands, rng)
            words = encode_edits(edits)
            assert decode_edits(words) == tuple(edits)
            LANGUAGE.encode(words)
            grammar = EditsGrammar(made.config, commands)
            for at, word in enumerate(words if edits else ()):
                assert word in grammar.after(words[:at]), words[: at + 1]
            assert not edits or not grammar.after(words)
            count += len(edits)
    assert count > 50


def test_grammar_offers_only_valid_edits(rng: random.Random) -> None:
    for made, piece in pieces():
        grammar = EditsGrammar(made.config, piece.unrolled.commands)
        for _ in range(5):
            words: list[str] = []
            while choices := grammar.after(words):
                words.append(rng.choice([word for word in choices if word != END] or [END]))
            edits = decode_edits(words)
            assert len(edits) == MAX_EDITS
            apply_edits(made.config, piece.unrolled.commands, edits)


def every_edit(count: int) -> Iterator[Edit]:
    """Yield every edit that can be written for a program with the given number of commands."""
    for at in range(count):
        place = index_from_nearer_end(at, count)
        yield from (Move(place, steps) for steps in range(-16, 17))
        for run in range(1, 9):
            for dim in range(MAX_DIMS):
                yield from (Split(place, run, dim, eighths) for eighths in (1, 7))


@pytest.mark.parametrize("name", ["conv", "max_pool"])
def test_grammar_offers_all_valid_edits(name: str) -> None:
    made = workshop(name)
    (piece,) = made.programs
    commands = piece.unrolled.commands[:12]
    grammar = EditsGrammar(made.config, commands)
    for edit in every_edit(len(commands)):
        words = encode_edits([edit])
        offered = all(word in grammar.after(words[:at]) for at, word in enumerate(words))
        assert offered == _allowed(made, commands, edit), edit


def _allowed(made: EditablePrograms, commands: tuple[Issued, ...], edit: Edit) -> bool:
    """Return True if an edit is valid and in canonical form."""
    try:
        apply_edits(made.config, commands, [edit])
    except EditError:
        return False
    return canonical(edit, commands, made.config.n) == edit


def test_unchanged_and_tried_programs_cannot_end() -> None:
    made = workshop("conv")
    (piece,) = made.programs
    tried: set[tuple[Edit, ...]] = set()
    grammar = EditsGrammar(made.config, piece.unrolled.commands, tried)
    steps = next(
        [Move(at, 1), Move(at + 1, -1)]
        for at in range(3)
        if all(word in grammar.after(encode_edits([Move(at, 1)])[:-1][:2]) for word in ("1",))
    )
    assert grammar.ends(encode_edits(steps[:1])) and not grammar.ends(encode_edits(steps))
    tried.add(tuple(steps[:1]))
    assert not grammar.ends(encode_edits(steps[:1]))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "not an edit"),
        (["1", END], "not an edit"),
        ([SPLIT, "1", END], "byte"),
        ([END, MOVE], "follows"),
        ([MOVE, "1", "-", "0", END], "magnitude"),
    ],
)
def test_invalid_words_are_rejected(words: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        decode_edits(words)


# Outline of a program.

_UNITS = {unit.name.lower(): unit for unit in Unit}


def parse_outline(words: list[str]) -> tuple[int, list[tuple[str, ...]], int]:
    """Return the number of commands in a program, the commands that its outline lists, and the number of omitted
    commands.
    """
    rest = iter(words)
    assert next(rest) == SUMMARY
    count, each, left = decode_number(rest), [], 0
    words = list(rest)
    while words:
        if words[0] == MORE:
            more = iter(words[1:])
            left = decode_number(more)
            words = list(more)
            continue
        times = period = 1
        if words[0] == TIMES:
            more = iter(words[1:])
            times, period = decode_number(more), decode_number(more)
            words = list(more)
        group = []
        for _ in range(period):
            end = next(at for at, word in enumerate(words) if word in _UNITS) + 1
            while end < len(words) and words[end] not in (*_UNITS, LAYER, TIMES, MORE):
                end += 1
            group.append(tuple(words[:end]))
            words = words[end:]
        each += group * times
    return count, each, left


def words_of_commands(commands: list[Issued], n: int) -> list[tuple[str, ...]]:
    """Return the words of each command."""
    out = []
    for number, command in enumerate(commands):
        sizes = [-(-get(command, dim.count) // dim.grain) for dim in dims_of(command, n)[:MAX_DIMS]]
        other = number > 0 and command.layer != commands[number - 1].layer
        spelt = [word for size in sizes for word in encode_number(size)]
        out.append((*[LAYER] * other, command.unit.name.lower(), *spelt))
    return out


def test_outline_lists_all_commands_or_both_ends(rng: random.Random) -> None:
    for made, piece in pieces():
        commands = list(piece.unrolled.commands)
        commands = apply_edits(made.config, commands, random_edits(made.config, commands, rng))
        for these in (commands, commands * 5, commands[:1]):
            words = summary_tokens(these, made.config.n)
            LANGUAGE.encode(words)
            count, each, left = parse_outline(words)
            wanted = words_of_commands(these, made.config.n)
            assert count == len(these) == len(each) + left and len(words) <= 110
            if left:
                front = next(at for at in range(len(each), -1, -1) if each[:at] == wanted[:at])
                assert each[front:] == wanted[len(wanted) - len(each) + front :]
            else:
                assert each == wanted
