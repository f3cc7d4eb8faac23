"""Generation of Verilog in which each branch names the line of `hw/` that it comes from.

Amaranth's Verilog writer gives source positions to wires and operators but not to the branches of a process. Two of its
methods are replaced here so that branches get positions too, and the counts of a line of Verilog can be attributed to a
line of Python. A test compares the logic of the result with that of the original writer.
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
    """Return the Verilog of the module `mla_chip` for `config`; cached like the plain Verilog.

    The attribute `src` of a case holds its position. The attribute `branches` of a switch lists the positions of
    all its cases. Positions are relative to the folder that contains `hw/`.
    """

    def write(path: Path) -> None:
        from hw.chip import Chip

        path.write_text(annotated(Chip(config), "mla_chip"))

    return cached_verilog(["annotated", repr(config), Path(__file__).read_bytes()], write)


def annotated(component: Elaboratable, name: str) -> str:
    """Return the output of `hw.verilog.writer.convert` with source positions added."""
    platform = VerilogPlatform()
    with (
        patch.object(rtlil.ModuleEmitter, "emit_assignment_list", _emit_assignment_list),
        patch.object(rtlil.Switch, "emit", _emit_switch),
    ):
        text = verilog.convert(component, name=name, platform=platform, emit_src=True)
    text = text.replace(f"{HARDWARE.parent}/", "").replace(f"{Path(rtlil.__file__).parents[2]}/", "")
    return text + "\n" + "\n".join(platform.modules[key] for key in sorted(platform.modules))


def _emit_switch(switch: Any, line: Any) -> None:
    """Replace Amaranth's method by one that also writes the position of each case, at the case and at the switch."""
    places = [rtlil._src(case.src_loc) or "" for case in switch.cases]
    line(f'attribute \\branches "{"|".join(places)}"')
    line(f"switch {switch.sel}")
    with line.indent():
        for case, place in zip(switch.cases, places, strict=True):
            line(f'attribute \\src "{place}"')
            case.emit(line)
    line("end")


def _emit_assignment_list(emitter: Any, cell_idx: int, cell: Any) -> None:
    """Replace Amaranth's method by one that also records the position of each case."""
    lhs = _nir.Value(_nir.Net.from_cell(cell_idx, bit) for bit in range(len(cell.default)))
    process = emitter.builder.process(src_loc=cell.src_loc)
    process.assign(emitter.sigspec(lhs), emitter.sigspec(cell.default))
    _Process(emitter, cell.assignments, lhs).emit(process, _TRUE)


class _Process:
    """Emitter of the assignments of one signal, in order."""

    def __init__(self, emitter: Any, assignments: Any, lhs: Any):
        self.emitter, self.assignments, self.lhs = emitter, assignments, lhs
        self.done = 0

    def emit(self, case: Any, condition: Any) -> None:
        """Emit the assignments nested in `condition` into `case`."""
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
        """Return the condition around `condition` that is directly inside `outer`, or true if there is no such
        condition.
        """
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
            else:  # Amaranth records no position of an Else, so use that of its first assignment.
                branch.src_loc = (self.assignments[first] if self.done > first else cells[index]).src_loc
