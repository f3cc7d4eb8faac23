"""Verilog of a chip in which each branch names the line of `hw/` that it comes from.

Amaranth gives a source position to wires and operators but not to the branches of a process. Here it does, so that
what a simulator counts for a line of Verilog can be told of a line of Python. Two methods of its writer are replaced
meanwhile; a test compares the result with what the writer prints by itself.
"""

from pathlib import Path
from typing import Any
from unittest.mock import patch

from amaranth.back import rtlil, verilog
from amaranth.hdl import Elaboratable

from cosim.rtl.verilog_cache import HARDWARE, cached_verilog
from hw.config import MlaConfig
from hw.verilog.writer import VerilogPlatform

_nir = rtlil._nir
_TRUE = _nir.Net.from_const(1)


def annotated_verilog(config: MlaConfig) -> str:
    """Text of the module `mla_chip` for `config`; cached like the plain text.

    A case follows a comment with its position. What precedes an `if` says in `branches` where it and what follows it
    come from. Positions are relative to the folder that holds `hw/`.
    """

    def write(path: Path) -> None:
        from hw.chip import Chip

        path.write_text(annotated(Chip(config), "mla_chip"))

    return cached_verilog(["annotated", repr(config), Path(__file__).read_bytes()], write)


def annotated(component: Elaboratable, name: str) -> str:
    """What `hw.verilog.writer.convert` gives, with positions: the logic is the same."""
    platform = VerilogPlatform()
    with (
        patch.object(rtlil.ModuleEmitter, "emit_assignment_list", _emit_assignment_list),
        patch.object(rtlil.Switch, "emit", _emit_switch),
    ):
        text = verilog.convert(component, name=name, platform=platform, emit_src=True)
    text = text.replace(f"{HARDWARE.parent}/", "").replace(f"{Path(rtlil.__file__).parents[2]}/", "")
    return text + "\n" + "\n".join(platform.modules[key] for key in sorted(platform.modules))


def _emit_switch(switch: Any, line: Any) -> None:
    """In place of Amaranth's: also says where each case comes from, at the case and, for an `if`, at the switch."""
    places = [rtlil._src(case.src_loc) or "" for case in switch.cases]
    line(f'attribute \\branches "{"|".join(places)}"')
    line(f"switch {switch.sel}")
    with line.indent():
        for case, place in zip(switch.cases, places, strict=True):
            line(f'attribute \\src "{place}"')
            case.emit(line)
    line("end")


def _emit_assignment_list(emitter: Any, cell_idx: int, cell: Any) -> None:
    """In place of Amaranth's: also notes where each case comes from."""
    lhs = _nir.Value(_nir.Net.from_cell(cell_idx, bit) for bit in range(len(cell.default)))
    process = emitter.builder.process(src_loc=cell.src_loc)
    process.assign(emitter.sigspec(lhs), emitter.sigspec(cell.default))
    _Process(emitter, cell.assignments, lhs).emit(process, _TRUE)


class _Process:
    """The assignments of one signal, in order, and how far they have been printed."""

    def __init__(self, emitter: Any, assignments: Any, lhs: Any):
        self.emitter, self.assignments, self.lhs = emitter, assignments, lhs
        self.done = 0

    def emit(self, case: Any, condition: Any) -> None:
        """Print what is nested in `condition` into `case`."""
        while self.done < len(self.assignments):
            assign = self.assignments[self.done]
            if assign.cond == condition:
                target = self.lhs[assign.start : assign.start + len(assign.value)]
                case.assign(self.emitter.sigspec(target), self.emitter.sigspec(assign.value))
                self.done += 1
                continue
            inner = self._inner(assign.cond, condition)
            if inner == _TRUE:
                return
            self._switch(case, inner.cell)

    def _inner(self, condition: Any, outer: Any) -> Any:
        """The condition around `condition` that lies directly in `outer`; true if there is none."""
        while condition != _TRUE and (enable := self.emitter.netlist.cells[condition.cell].en) != outer:
            condition = enable
        return condition

    def _switch(self, case: Any, index: int) -> None:
        cells = self.emitter.netlist.cells
        tests = [None if net == _TRUE else cells[net.cell] for net in cells[index].inputs]
        value = next((test.value for test in tests if test), _nir.Value())
        switch = case.switch(self.emitter.sigspec(value))
        for bit, test in enumerate(tests):
            branch = switch.case(test.patterns) if test else switch.default()
            first = self.done
            self.emit(branch, _nir.Net.from_cell(index, bit))
            if test:
                branch.src_loc = test.src_loc
            else:  # Amaranth does not keep where an Else is: its first assignment stands for it
                branch.src_loc = (self.assignments[first] if self.done > first else cells[index]).src_loc
