"""Tracking of a master's bursts in flight: their number, latency and addresses."""

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.lib.ram import Ram

#: Maximum number of bursts in flight: enough for a latency of 400 cycles with bursts of one beat.
BURSTS = 512


class OutstandingBursts(wiring.Component):
    """Records the address and the request time of each burst until its response arrives; responses arrive in the order
    of the requests.

    Latency: `error` is set two cycles after `beat_error`; the maxima are updated three cycles after `answered`.
    Throughput: one request and one answer per cycle.

    Parameters
    ----------
    config : MlaConfig
        Machine configuration; uses the width of the bus.

    Members
    -------
    issued, issued_addr : In
        High if the bus accepts a request in this cycle; byte address of the request.
    beat : In
        High if a beat of the oldest burst is transferred in this cycle.
    answered : In
        High if the oldest burst completes in this cycle.
    beat_error : In
        High if the beat or response of this cycle reports an error.
    allow : Out
        High if another burst may be requested.
    in_flight : Out
        Number of bursts accepted and not yet answered.
    error, error_addr : Out
        One-cycle pulse for an error; byte address of the beat with the error (of the burst if `beat` is not used).
    in_flight_max, latency_max : Out
        Maximum number of bursts in flight; maximum number of cycles from a request to its completion.
    """

    issued: In(1)
    issued_addr: In(32)
    beat: In(1)
    answered: In(1)
    beat_error: In(1)
    allow: Out(1)
    in_flight: Out(10)
    error: Out(1)
    error_addr: Out(32)
    in_flight_max: Out(16)
    latency_max: Out(16)

    def __init__(self, config: MlaConfig):
        self._lane_bits = (config.beat_bytes - 1).bit_length()
        super().__init__()

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.ram = ram = Ram(width=32 - self._lane_bits + 16, depth=BURSTS)
        head, tail = Signal(range(BURSTS)), Signal(range(BURSTS))
        now, now_read = Signal(16), Signal(16)
        position, position_read = Signal(8), Signal(8)
        ended, failed = Signal(), Signal()
        latency, latency_valid = Signal(16), Signal()
        started, first_beat = Signal(16), Signal(32 - self._lane_bits)
        m.d.comb += [
            # The threshold is two below the limit, because a request may be offered while the count is read.
            self.allow.eq(self.in_flight < BURSTS - 2),
            ram.w_addr.eq(tail),
            ram.w_en.eq(self.issued),
            ram.w_data.eq(Cat(now, self.issued_addr[self._lane_bits :])),
            ram.r0_addr.eq(head),
            ram.r0_en.eq(self.answered | self.beat_error),
            Cat(started, first_beat).eq(ram.r0_data),
        ]
        m.d.sync += [
            now.eq(now + 1),
            tail.eq(tail + self.issued),
            head.eq(head + self.answered),
            self.in_flight.eq(self.in_flight + self.issued - self.answered),
            position.eq(Mux(self.answered, 0, position + self.beat)),
            now_read.eq(now),
            position_read.eq(position),
            ended.eq(self.answered),
            failed.eq(self.beat_error),
            latency.eq(now_read - started),
            latency_valid.eq(ended),
            self.error.eq(failed),
            self.error_addr.eq((first_beat + position_read) << self._lane_bits),
        ]
        with m.If(self.in_flight > self.in_flight_max):
            m.d.sync += self.in_flight_max.eq(self.in_flight)
        with m.If(latency_valid & (latency > self.latency_max)):
            m.d.sync += self.latency_max.eq(latency)
        return m
