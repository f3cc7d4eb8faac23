"""The chip with a probe that observes its commands, for simulators that record the activity of each unit."""

from amaranth.hdl import Cat, ClockSignal, Elaboratable, Instance

from hw.chip import Chip
from hw.isa.enums import Unit


class ProbedChip(Chip):
    """The chip with an instance of `mla_probe`, a module that the simulator provides.

    Inputs of the probe: `started` and `retired` (one bit for each unit, high if a command starts or retires), `tags` (6
    bits for each unit: tag of the command at the head of its queue), `entered` (high if a program starts),
    `entered_tag` (its tag), `halted` (high if a program halts), `read` and `written` (high if a beat is transferred on
    the bus).
    """

    def elaborate(self, platform: object) -> Elaboratable:
        m = super().elaborate(platform)
        queues = [getattr(m.submodules, f"{unit.name.lower()}_queue") for unit in Unit]
        core = m.submodules.core
        m.submodules.probe = Instance(
            "mla_probe",
            i_clk=ClockSignal(),
            i_started=Cat(queue.started for queue in queues),
            i_retired=Cat(queue.retired for queue in queues),
            i_tags=Cat(queue.output.payload.meta.tag for queue in queues),
            i_entered=core.start.valid & core.start.ready,
            i_entered_tag=core.start.payload.tag,
            i_halted=core.halted,
            i_read=self.m_axi_rvalid & self.m_axi_rready,
            i_written=self.m_axi_wvalid & self.m_axi_wready,
        )
        return m
