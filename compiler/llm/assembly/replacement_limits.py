"""Limits of a program that is to stand in the place of another one."""

from collections.abc import Sequence

from compiler.llm.assembly.abstract_machine import TOKENS, AbstractMachine
from compiler.llm.assembly.limits import ProgramLimits, Semaphore
from compiler.validate.macro_call import MacroCall
from cosim.semantics.command_checks import DramWindow
from hw.config import MlaConfig
from hw.isa.enums import SEMAPHORES_PER_PAIR


def limits_in_place(
    config: MlaConfig, calls: Sequence[MacroCall], windows: Sequence[DramWindow], index: int, *, tokens: int
) -> ProgramLimits:
    """Limits of a program in place of that of a call: it begins where that one does, and leaves the same tokens.

    Parameters
    ----------
    config : MlaConfig
        The machine.
    calls : sequence of Call
        The stream, as `compiler.runtime.validation.stage_calls` gives it.
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
    after = AbstractMachine.of(ProgramLimits(config=config, windows=windows, before=calls[: index + 1]))
    counts = enumerate(after.way.timeline.counts)
    leaves = {_semaphore(place): count for place, count in counts if count}
    return ProgramLimits(
        tokens=tokens,
        instructions=config.wis_words,
        config=config,
        operands=call.operands,
        tag=call.tag,
        windows=windows,
        before=calls[:index],
        leaves=leaves,
    )


def _semaphore(place: int) -> Semaphore:
    """The semaphore at a place among the counts of all."""
    consumer, number = divmod(place, TOKENS)
    return number // SEMAPHORES_PER_PAIR, consumer, number % SEMAPHORES_PER_PAIR
