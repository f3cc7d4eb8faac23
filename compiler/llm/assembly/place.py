"""Limits of a program that is to stand in the place of another one."""

from collections.abc import Sequence

from compiler.llm.assembly.limits import Limits, Semaphore
from compiler.llm.assembly.machine import Machine
from compiler.llm.assembly.tracker import TOKENS
from compiler.validate.call import Call
from cosim.golden.checks import Window
from hw.config import MlaConfig
from hw.isa.enums import SEMAPHORES_PER_PAIR


def limits_in_place(
    config: MlaConfig, calls: Sequence[Call], windows: Sequence[Window], index: int, *, tokens: int
) -> Limits:
    """Limits of a program in place of that of a call: it begins where that one does, and leaves the same tokens.

    Parameters
    ----------
    config : MlaConfig
        The machine.
    calls : sequence of Call
        The stream, as `compiler.validate.network.stage_calls` gives it.
    windows : sequence of (first byte, last byte, permissions)
        DRAM that programs may touch.
    index : int
        Of the call.
    tokens : int
        Most words of the program.

    Raises
    ------
    ValidationError
        The stream up to there is not safe, or the data decide about its way.
    """
    call = calls[index]
    after = Machine.of(Limits(config=config, windows=windows, before=calls[: index + 1]))
    counts = enumerate(after.way.timeline.counts)
    leaves = {_semaphore(place): count for place, count in counts if count}
    return Limits(
        tokens=tokens, instructions=config.wis_words, config=config, operands=call.operands, tag=call.tag,
        windows=windows, before=calls[:index], leaves=leaves,
    )  # fmt: skip


def _semaphore(place: int) -> Semaphore:
    """The semaphore at a place among the counts of all."""
    consumer, number = divmod(place, TOKENS)
    return number // SEMAPHORES_PER_PAIR, consumer, number % SEMAPHORES_PER_PAIR
