"""Writer of Verilog for the chip and other components.

Memories are written as behavioral modules named `mla_ram_*` with their storage in `mem`. Amaranth's own output contains
one `initial` line for each word, which takes minutes to write for a scratchpad. Yosys infers block RAM from these
modules, Verilator compiles them quickly, and the simulator's backdoor access finds `mem` by name.
"""

from pathlib import Path

from amaranth.back import verilog
from amaranth.hdl import ClockSignal, Elaboratable, Instance
from amaranth.lib import memory

from hw.config import MlaConfig
from hw.errors import InputError, WorkError
from hw.verilog.sim_clocked import clocked_registers
from hw.verilog.sim_gated import gated_logic


class VerilogPlatform:
    """Elaboration platform that replaces each memory by an instance and collects the modules to print.

    Parameters
    ----------
    fast : bool
        True if the modules are for fast simulation.
    """

    def __init__(self, fast: bool = False) -> None:
        self.fast = fast
        self.modules: dict[str, str] = {}

    def get_memory(self, mem: memory.Memory) -> Elaboratable:
        """Return the instance that replaces `mem`; Amaranth calls this method for every memory that it elaborates."""
        if not mem.write_ports or any(mem.init):  # Amaranth writes a ROM, which has initial contents
            return mem.elaborate(None)
        (write,) = mem.write_ports
        width, depth = len(write.data), mem.depth
        granules = len(write.en)
        kinds = "".join(_read_kind(port, write) for port in mem.read_ports)
        attributes = ", ".join(f"{key} = {_quoted(value)}" for key, value in sorted(mem.attrs.items()))
        name = f"mla_ram_w{width}_d{depth}_g{width // granules}_{kinds}{'x' if attributes else ''}"
        writes = (_word_write if self.fast or granules == 1 else _granule_writes)(width, granules)
        self.modules.setdefault(name, _ram_module(name, width, depth, granules, kinds, attributes, writes))
        ports: dict = {
            "i_clk": ClockSignal(write.signature.domain if hasattr(write.signature, "domain") else "sync"),
            "i_w_addr": write.addr,
            "i_w_data": write.data,
            "i_w_en": write.en,
        }
        for i, (port, kind) in enumerate(zip(mem.read_ports, kinds, strict=True)):
            ports |= {f"i_r{i}_addr": port.addr, f"o_r{i}_data": port.data}
            if kind != "c":
                ports[f"i_r{i}_en"] = port.en
        return Instance(name, **ports)


def _read_kind(port: memory.ReadPort, write: memory.WritePort) -> str:
    """Return the kind of a read port: "c" combinational, "s" synchronous, "t" synchronous and transparent."""
    if port.domain == "comb":
        return "c"
    return "t" if write in port.transparent_for else "s"


def _quoted(value: int | str) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _slices(width: int, granules: int) -> list[str]:
    size = width // granules
    return [f"[{(g + 1) * size - 1}:{g * size}]" for g in range(granules)]


def _granule_writes(width: int, granules: int) -> list[str]:
    """Return a write statement for each granule, from which synthesis infers byte enables."""
    writes = [
        f"      if (w_en[{g}]) mem[w_addr]{s} <= w_data{s};" for g, s in enumerate(_slices(width, granules))
    ]
    return ["  always @(posedge clk) if (|w_en) begin", *writes, "  end"]


def _word_write(width: int, granules: int) -> list[str]:
    """Return one statement that writes all granules, so that a simulator executes a single statement per clock edge."""
    if granules == 1:
        return ["  always @(posedge clk) if (w_en) mem[w_addr] <= w_data;"]
    mask = ", ".join(f"{{{width // granules}{{w_en[{g}]}}}}" for g in reversed(range(granules)))
    return [
        f"  wire [{width - 1}:0] w_mask = {{{mask}}};",
        "  always @(posedge clk) if (|w_en)",
        "    mem[w_addr] <= &w_en ? w_data : mem[w_addr] & ~w_mask | w_data & w_mask;",
    ]


def _ram_module(
    name: str, width: int, depth: int, granules: int, kinds: str, attributes: str, writes: list[str]
) -> str:
    """Return the Verilog text of a memory with one write port and a read port for each letter of `kinds`."""
    address = max((depth - 1).bit_length(), 1)
    slices = _slices(width, granules)
    ports = [
        "input clk",
        f"input [{address - 1}:0] w_addr",
        f"input [{width - 1}:0] w_data",
        f"input [{granules - 1}:0] w_en",
    ]
    reads = []
    for i, kind in enumerate(kinds):
        ports.append(f"input [{address - 1}:0] r{i}_addr")
        if kind == "c":
            ports.append(f"output [{width - 1}:0] r{i}_data")
            reads.append(f"  assign r{i}_data = mem[r{i}_addr];")
            continue
        ports += [f"input r{i}_en", f"output reg [{width - 1}:0] r{i}_data"]
        body = [f"    r{i}_data <= mem[r{i}_addr];"]
        if kind == "t":
            body += [
                f"    if (w_en[{g}] && w_addr == r{i}_addr) r{i}_data{s} <= w_data{s};"
                for g, s in enumerate(slices)
            ]
        reads += [f"  always @(posedge clk) if (r{i}_en) begin", *body, "  end"]
    return "\n".join(
        [
            f"module {name}({', '.join(ports)});",
            f"  {f'(* {attributes} *) ' if attributes else ''}reg [{width - 1}:0] mem [0:{depth - 1}]{_public(kinds)};",
            *writes,
            *reads,
            "endmodule",
            "",
        ]
    )


def _public(kinds: str) -> str:
    """Return the annotation of storage that a simulator's backdoor access may write.

    With the annotation, every call of Verilator's evaluation also evaluates the logic that depends on combinational
    reads, so memories with such reads have no annotation.
    """
    return "" if "c" in kinds else " /*verilator public_flat_rw*/"


def convert(component: Elaboratable, name: str, *, fast: bool = False) -> str:
    """Return the Verilog text of a component and its memories; the top module is called `name`.

    Parameters
    ----------
    component : Elaboratable
        Component to convert to Verilog.
    name : str
        Name of the top module.
    fast : bool
        True to rearrange the text for fast simulation; signals without readers are then missing.
    """
    platform = VerilogPlatform(fast)
    text = verilog.convert(component, name=name, platform=platform, emit_src=False, strip_internal_attrs=True)
    if fast:
        text = gated_logic(clocked_registers(text))
    return text + "\n" + "\n".join(platform.modules[key] for key in sorted(platform.modules))


def emit_verilog(config: MlaConfig, path: str | Path, *, fast: bool = False, probe: bool = False) -> Path:
    """Write the Verilog text of the whole chip (module `mla_chip`) to `path`, and return the path.

    `fast` is passed to `convert`; `probe` selects `hw.probe.ProbedChip`.

    Raises
    ------
    InputError
        The folder does not exist.
    WorkError
        The file cannot be written.
    """
    from hw.chip import Chip
    from hw.probe import ProbedChip

    path = Path(path)
    if not path.parent.is_dir():
        raise InputError(f"output folder {str(path.parent)!r} does not exist")
    text = convert((ProbedChip if probe else Chip)(config), "mla_chip", fast=fast)
    try:
        path.write_text(text)
    except OSError as error:
        raise WorkError(f"{path} cannot be written: {error.strerror}") from error
    return path
