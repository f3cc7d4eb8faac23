"""Named groups of tokens that are valid in the same positions."""

from compiler.llm.assembly.lexicon import HEADS, NAME_OF, PAIRS, REGISTER_WORDS, SELECTORS, SIGNALS, WAITS

#: Register that is always zero.
ZERO = NAME_OF[0]
HEAD, REGISTER, SELECTOR = "any head", "any register", "any selector but of register 0"


def pair_group(packed: str, start: int) -> str:
    """Return the group of single-token parts of a packed field, from part `start` on."""
    return f"any pair of {packed} from {start}"


def semaphore_group(kind: str, start: int) -> str:
    """Return the group of waits or signals from number `start` on."""
    return f"any {kind} from {start}"


SEMAPHORES = {"wait": WAITS, "signal": SIGNALS}
#: Kind and first number of each semaphore group.
SEMAPHORE_GROUPS = {
    semaphore_group(kind, start): (kind, start)
    for kind, words in SEMAPHORES.items()
    for start in range(len(words))
}

#: Tokens of each group.
GROUPS: dict[str, tuple[str, ...]] = {
    HEAD: tuple(HEADS),
    REGISTER: REGISTER_WORDS,
    SELECTOR: tuple(word for word in SELECTORS if word != ZERO),
    **{
        pair_group(name, start): tuple(
            word for word, (index, value) in words.items() if value is not None and index >= start
        )
        for name, words in PAIRS.items()
        for start in range(max((index for index, _ in words.values()), default=0) + 2)
    },
    **{name: SEMAPHORES[kind][start:] for name, (kind, start) in SEMAPHORE_GROUPS.items()},
}
