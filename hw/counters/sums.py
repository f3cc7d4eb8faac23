"""The choice of one of all groups' sums."""

from amaranth.hdl import Module, Signal, Value

from hw.lib.pipeline import held
from hw.lib.trees import select_tree

#: Bits of a counter's number by which sums are chosen before their register, with `late`.
_FIRST_BITS = 4


def sampled_sum(
    m: Module, counter: Value, sums: dict[int, Value], width: int, sample: Signal, late: int
) -> Value:
    """The sum of a counter as it is at `sample`, from the next cycle on until the next `sample`.

    Parameters
    ----------
    m : Module
        Takes the registers.
    counter : Value
        Number of the counter.
    sums : dict of int to Value
        Sums by number.
    width : int
        Bits of the widest.
    sample : Signal
        Take the sum.
    late : int
        1: a part of the choice comes after the register.
    """
    first, rest = (counter[:_FIRST_BITS], counter[_FIRST_BITS:]) if late else (counter, None)
    blocks: dict[int, dict[int, Value]] = {}
    for i, value in sums.items():
        block, place = divmod(i, 1 << len(first))
        blocks.setdefault(block, {})[place] = value
    found: dict[int, Value] = {}
    for block, values in blocks.items():
        found[block] = sampled = Signal(width, name=f"sampled_{block}")
        with m.If(sample):
            m.d.sync += sampled.eq(select_tree(m, f"sum_{block}" if late else "sum", first, values))
    return found[0] if rest is None else select_tree(m, "sampled", held(m, "block", rest, sample), found)
