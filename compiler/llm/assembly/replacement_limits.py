"""Limits of a program that replaces another one."""

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
    """Return the limits of a replacement, which starts in the same state and leaves the same semaphore counts.

    Parameters
    ----------
    config : MlaConfig
        Hardware configuration of the programs.
    calls : sequence of MacroCall
        Sequence of calls from `compiler.runtime.validation.stage_calls`.
    windows : sequence of (first byte, last byte, permissions)
        DRAM windows of the programs.
    index : int
        Index of the call whose program is replaced.
    tokens : int
        Maximum number of tokens of the program.

    Raises
    ------
    ValidationError
        The preceding calls are not safe, or their control flow depends on data.
    """
    call = calls[index]
    after = AbstractMachine.at_start(ProgramLimits(config=config, windows=windows, before=calls[: index + 1]))
    counts = enumerate(after.path.order.counts)
    leaves = {_semaphore(index): count for index, count in counts if count}
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


def _semaphore(index: int) -> Semaphore:
    """Return the semaphore with an index among all counts."""
    consumer, number = divmod(index, TOKENS)
    return number // SEMAPHORES_PER_PAIR, consumer, number % SEMAPHORES_PER_PAIR
