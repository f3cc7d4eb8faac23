"""Assembly tokens: the part of the vocabulary for assembly programs, derived from the tables of `hw.isa`.

`compiler.llm.assembly.tokenizer` encodes programs with these tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from compiler.codegen.dispatch_guard import Guard
from compiler.llm.tokens.integer_tokens import decode_single_number, encode_number
from hw.isa.commands import PACKED_FIELDS, UNIT_FIELDS, field_number
from hw.isa.enums import SEMAPHORES_PER_PAIR, Compare, Unit
from hw.isa.fields import Field, Packed
from hw.isa.micro_instruction import (
    FORMS,
    MAX_OPERANDS,
    OPERAND_BASE,
    REGISTERS,
    STATISTIC_BASE,
    WORD,
    MicroOp,
    Statistic,
)


class TokenChoice(NamedTuple):
    """Set of next tokens after which the remaining part of the operand has the same grammar.

    Parameters
    ----------
    option : str or (int, int)
        A token, the name of a token group (`GROUPS`), or the smallest and largest value of a byte token.
    cost : int
        Minimum number of tokens after this one until the operand is complete.
    """

    option: str | tuple[int, int]
    cost: int = 0

    def has_byte(self, value: int) -> bool:
        """Return whether a byte is among the choices."""
        return isinstance(self.option, tuple) and self.option[0] <= value <= self.option[1]


#: Tokens for the end of a program and of a loop body.
STOP, END = "stop", "end"
#: Token of a loop without a body; the distance to its end follows.
TO = "to"
#: Token of a selector without a name; its number follows.
SELECTOR = "sel"
#: Maximum width of a packed field part with one token per value.
_MAX_ENUMERATED_BITS = 3


@dataclass(frozen=True)
class Head:
    """First token of an instruction.

    Parameters
    ----------
    token : str
        Token as a string.
    op : MicroOp
        Operation of the instruction.
    d : int
        Bits of the instruction's field `d` that the token determines.
    kinds : tuple of str
        Kinds of the following operands, as in `hw.isa.micro_instruction.Form`.
    field : Field or None
        Field that a `set` instruction sets.
    packed : Packed or None
        Layout of the field's parts, if it is packed.
    """

    token: str
    op: MicroOp
    d: int
    kinds: tuple[str, ...]
    field: Field | None = None
    packed: Packed | None = None


def _units(mask: int) -> str:
    return ",".join(unit.name.lower() for unit in Unit if mask >> unit & 1)


def semaphores(producers: int) -> tuple[str, ...]:
    """Return the names of semaphores, in bit order, for the first `producers` of the four units and the sequencer."""
    names = [*(unit.name.lower() for unit in Unit), "seq"][:producers]
    return tuple(f"{name}:{index}" for name in names for index in range(SEMAPHORES_PER_PAIR))


#: Kinds of first operands that belong to the first token: names, and the bits of `d` that each determines.
_NAMED = {
    "unit": {unit.name.lower(): int(unit) for unit in Unit},
    "sem": {name: number for number, name in enumerate(semaphores(len(Unit)))},
    "mask": {_units(mask): mask for mask in range(1 << len(Unit))},
}


def _heads() -> Iterator[Head]:
    for op, form in FORMS.items():
        name, rest = op.name.lower(), form.operands[1:]
        first = form.operands[0] if form.operands else ""
        if first == "field":
            yield from _settings(name, op, rest)
        elif first in _NAMED:
            for text, d in _NAMED[first].items():
                yield Head(f"{name} {text}".strip(), op, d, rest)
        else:
            yield Head(name, op, 0, form.operands)


def _settings(name: str, op: MicroOp, rest: tuple[str, ...]) -> Iterator[Head]:
    for unit in Unit:
        for field in UNIT_FIELDS[unit]:
            key = f"{unit.name.lower()}.{field.name}"
            yield Head(
                f"{name} {key}", op, field_number(unit, field.name), rest, field, PACKED_FIELDS.get(key)
            )


def _selectors() -> Iterator[tuple[str, int]]:
    yield from ((f"r{number}", number) for number in range(REGISTERS))
    yield from ((f"op{number}", OPERAND_BASE + number) for number in range(MAX_OPERANDS))
    yield from ((f"%{item.name.lower()}", STATISTIC_BASE + item) for item in Statistic)


def pairs(packed: Packed) -> dict[str, tuple[int, int | None]]:
    """Return the tokens of non-default parts of a packed field, with the index and the value of the part.

    The value is None if number tokens follow.
    """
    out: dict[str, tuple[int, int | None]] = {}
    for index, part in enumerate(packed.fields):
        if not part.enum and part.width > _MAX_ENUMERATED_BITS:
            out[f"{part.name}="] = index, None
            continue
        for value in range(part.low, part.high + 1):
            if value != part.default:
                name = part.enum[value] if value < len(part.enum) else value
                out[f"{part.name}={name}"] = index, value
    return out


HEADS = {head.token: head for head in _heads()}
#: Heads by operation and by the bits of `d` that they determine.
HEAD_OF = {(head.op, head.d): head for head in HEADS.values()}
#: Operations whose first token determines bits of `d`.
NAMING = frozenset(
    op
    for op, form in FORMS.items()
    if form.operands and (form.operands[0] == "field" or form.operands[0] in _NAMED)
)
SELECTORS = dict(_selectors())
NAME_OF = {selector: token for token, selector in SELECTORS.items()}
REGISTER_TOKENS = tuple(NAME_OF[number] for number in range(REGISTERS))
#: Selectors without a name.
NAMELESS = tuple(number for number in range(1 << WORD.fields[1].width) if number not in NAME_OF)
WAITS = tuple(f"wait({name})" for name in semaphores(len(Unit)))
SIGNALS = tuple(f"signal({name})" for name in semaphores(len(Unit) + 1))
PAIRS = {packed.name: pairs(packed) for packed in PACKED_FIELDS.values()}
#: Tokens that a number follows, with the index of the part, by packed field.
OPENERS = {
    name: tuple((token, index) for token, (index, value) in tokens.items() if value is None)
    for name, tokens in PAIRS.items()
}
#: Tokens that were added to the vocabulary later, each with the token whose weights it has before it is trained.
ADDED_TOKENS = {
    **{
        token: token.replace("root_shifts", "shifts") for token in HEADS if token.endswith("fuse.root_shifts")
    },
    "table_wide=1": "table=1",
}
#: Tokens of values that had no names before, likewise.
NAMED_TOKENS = {
    "op=mul_sub": "op=sub",
    "post=row": "post=scale",
    "post=slot": "post=scale",
    "post=var_rsqrt": "post=rsqrt",
}
#: Tokens that were added without a related token; their weights are random until the model is trained again.
UNUSED_TOKENS = ("wide=1", "scaled=1", "sparse=1")
#: All other distinct tokens except numbers.
TOKENS = tuple(
    token
    for token in dict.fromkeys(
        [
            STOP,
            END,
            TO,
            SELECTOR,
            *HEADS,
            *SELECTORS,
            *WAITS,
            *SIGNALS,
            *(token for tokens in PAIRS.values() for token in tokens),
        ]
    )
    if token not in ADDED_TOKENS and token not in UNUSED_TOKENS
)

#: Tokens of guards (`compiler.codegen.dispatch_guard`) by kind of comparison; a selector and a number follow.
GUARDS = {compare: f"guard {compare.name.lower()}" for compare in Compare if compare is not Compare.ALWAYS}

#: Token of the register that is always zero.
ZERO = NAME_OF[0]
ANY_HEAD, ANY_REGISTER, ANY_SELECTOR = "any head", "any register", "any selector but of register 0"


def pair_group(packed: str, start: int) -> str:
    """Return the name of the group of single-token parts of a packed field, starting with part `start`."""
    return f"any pair of {packed} from {start}"


def semaphore_group(kind: str, start: int) -> str:
    """Return the name of the group of waits or signals, starting with number `start`."""
    return f"any {kind} from {start}"


SEMAPHORES = {"wait": WAITS, "signal": SIGNALS}
#: Type and first number of each semaphore group.
SEMAPHORE_GROUPS = {
    semaphore_group(kind, start): (kind, start)
    for kind, tokens in SEMAPHORES.items()
    for start in range(len(tokens))
}

#: Tokens of each group.
GROUPS: dict[str, tuple[str, ...]] = {
    ANY_HEAD: tuple(HEADS),
    ANY_REGISTER: REGISTER_TOKENS,
    ANY_SELECTOR: tuple(token for token in SELECTORS if token != ZERO),
    **{
        pair_group(name, start): tuple(
            token for token, (index, value) in tokens.items() if value is not None and index >= start
        )
        for name, tokens in PAIRS.items()
        for start in range(max((index for index, _ in tokens.values()), default=0) + 2)
    },
    **{name: SEMAPHORES[kind][start:] for name, (kind, start) in SEMAPHORE_GROUPS.items()},
}


def encode_guard(guard: Guard) -> list[str]:
    """Encode a guard as tokens: the comparison, the operand or statistic, and the value that it is compared with."""
    return [GUARDS[guard.compare], NAME_OF[guard.selector], *encode_number(guard.value)]


def decode_guard(tokens: Sequence[str]) -> Guard:
    """Decode a guard; inverse of `encode_guard`.

    Raises
    ------
    ValueError
        The tokens are not a guard.
    """
    compare = next((each for each, token in GUARDS.items() if [token] == list(tokens[:1])), None)
    if compare is None or len(tokens) < 3 or tokens[1] not in SELECTORS:
        raise ValueError(f"{' '.join(tokens)!r} is not a guard")
    return Guard(compare, SELECTORS[tokens[1]], decode_single_number(tokens[2:]))
