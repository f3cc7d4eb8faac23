"""Faster functions for Amaranth's simulator, in which the tests of blocks spend most of their time.

They compute the same in the same order, but with fewer calls of Python functions: the simulator of Amaranth 0.5 calls
one for every driven signal of a process that runs, changed or not, and two for every signal that changes.
`tests/block/test_testbench.py` compares both.
"""

import builtins
import re
from types import CodeType
from typing import Any

from amaranth.sim import _pyrtl, pysim
from amaranth.sim._async import AsyncProcess

#: Last statements of a process, which update the signals that it drives.
_UPDATE = re.compile(r"^( *)slots\[(\d+)\]\.update\(next_\2(, -?\d+)?\)$", re.MULTILINE)
_SLOT = re.compile(r"slots\[(\d+)\]")

_original_step = pysim.PySimEngine.step_design
_original_commit = pysim._PyEngineState.commit


def install() -> None:
    """Replace the functions of Amaranth's simulator, for all simulators that are made afterwards."""
    # The names are looked up in the module before the built-in functions.
    vars(_pyrtl).update(compile=_compile, exec=_exec)
    pysim.PySimEngine.step_design = _step_design
    pysim._PyEngineState.commit = _commit


def uninstall() -> None:
    """Restore the functions of Amaranth's simulator."""
    for name in ("compile", "exec"):
        vars(_pyrtl).pop(name, None)
    pysim.PySimEngine.step_design = _original_step
    pysim._PyEngineState.commit = _original_commit


def faster_source(code: str) -> str:
    """Return the source of a process that updates only changed signals, and whose signals are variables `slot_N`."""
    return _SLOT.sub(
        r"slot_\1", _UPDATE.sub(r"\1if slots[\2].next != next_\2: slots[\2].update(next_\2\3)", code)
    )


def _compile(code: str, filename: str, mode: str) -> CodeType:
    return builtins.compile(faster_source(code), filename, mode)


def _exec(code: CodeType, names: dict[str, Any]) -> None:
    """Execute the definition of a process, with a variable for each signal that its source uses."""
    for function in code.co_consts:
        if isinstance(function, CodeType):
            used = [name for name in function.co_names if name.startswith("slot_")]
            names.update({name: names["slots"][int(name.removeprefix("slot_"))] for name in used})
    builtins.exec(code, names)


def _step_design(self: Any) -> None:
    """Run the processes until no signal changes, as in the simulator if no waveform is written."""
    if self._vcd_writers:
        _original_step(self)
        return
    processes, triggers, state = self._processes, self._active_triggers, self._state
    converged = False
    while not converged:
        for trigger in triggers:
            trigger.run()
        triggers.clear()
        for process in [each for each in processes if each.runnable]:
            process.runnable = False
            process.run()
            if type(process) is AsyncProcess:
                assert process.waits_on is None or type(process.waits_on) is pysim._PyTriggerState
        converged = state.commit()
        self._delta_cycles += 1


def _commit(self: Any, changed: set[Any] | None = None) -> bool:
    """Apply the queued changes of signals and memories and wake the processes that wait for them."""
    if changed is not None:
        return _original_commit(self, changed)
    converged = True
    for state in self.pending:
        if type(state) is pysim._PySignalState:
            before, after = state.curr, state.next
            if before == after:
                continue
            wakers = state.wakers
            if wakers:
                kept = [waker for waker in wakers if waker(before, after)]
                if len(kept) != len(wakers):
                    wakers[:] = kept
            state.curr = after
            converged = False
        elif state.commit():
            converged = False
    self.pending.clear()
    return converged
