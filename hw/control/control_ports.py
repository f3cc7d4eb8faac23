"""The ports of Control."""

from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.bus.axi import BURST, RESPONSE, read_beat, write_beat
from hw.bus.axi_lite import lite_pins
from hw.config import MlaConfig
from hw.control.layouts import BUS_ERROR_LAYOUT
from hw.isa.enums import Unit
from hw.memory.instruction_store import WIS_ADDR_BITS
from hw.sequencer.layouts import (
    PC_BITS,
    SEGMENT_LAYOUT,
    START_LAYOUT,
    STATISTICS_LAYOUT,
    TRAP_LAYOUT,
    limit_ports,
    windows_layout,
)

#: Events of the control side, one cycle each; names as in hw.isa.counters.
EVENT_LAYOUT = data.StructLayout(
    dict.fromkeys(("dispatch_first", "dispatch_other", "wis_words", "wis_loads", "traps"), 1)
)
_UNITS = len(Unit)


def control_ports(config: MlaConfig) -> dict[str, wiring.Member]:
    """Ports of Control by name; its docstring describes them."""
    beats = stream.Signature(read_beat(config))
    return lite_pins() | {
        "irq": Out(1),
        "cycle": Out(64),
        "status": Out(5),
        "gated": Out(1),
        "trap_tag": Out(6),
        "events": Out(EVENT_LAYOUT),
        "start": Out(stream.Signature(START_LAYOUT)),
        "fetch_addr": In(WIS_ADDR_BITS),
        "fetch_en": In(1),
        "fetch_data": Out(64),
        "operand_addr": In(6),
        "operand_data": Out(32),
        "seg_index": In(8),
        "seg_info": Out(SEGMENT_LAYOUT),
        "in_use": In(config.segments),
        "halted": In(1),
        "steps": In(32),
        "trap": In(TRAP_LAYOUT),
        "core_blocked": In(1),
        "blocked_pc": In(PC_BITS),
        "core_pc": In(PC_BITS),
        "core_segment": In(8),
        "core_tag": In(6),
        "stop": Out(1),
        "flush": Out(1),
        "abort": Out(1),
        "step_limit": Out(32),
        "windows": Out(windows_layout(config)),
        **limit_ports(config, asks=False),
        "statistics": In(STATISTICS_LAYOUT),
        "issued": In(_UNITS),
        "retired": In(_UNITS),
        "idle": In(_UNITS),
        "stuck": In(_UNITS),
        "busy": In(_UNITS),
        "load_error": In(BUS_ERROR_LAYOUT),
        "store_error": In(BUS_ERROR_LAYOUT),
        "fetch_ar": Out(stream.Signature(BURST)),
        "fetch_r": In(beats),
        "loader_ar": Out(stream.Signature(BURST)),
        "loader_r": In(beats),
        "record_aw": Out(stream.Signature(BURST)),
        "record_w": Out(stream.Signature(write_beat(config))),
        "record_b": In(stream.Signature(RESPONSE)),
        "counter_select": Out(32),
        "counter_read": Out(1),
        "counter_done": In(1),
        "counter_value": In(64),
        "maximum_select": Out(32),
        "maximum_value": In(32),
    }
