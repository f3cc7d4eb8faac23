"""Depthwise stream of MATRIX: determines the steps in which a new pixel arrives or a sum enters the array."""

from amaranth.hdl import Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig


class DepthwiseSteps(wiring.Component):
    """Generator of the steps of a depthwise stream for one block of channels.

    The sum of stream position n enters the array taps - 1 steps before pixel n, because array row taps - 1 uses pixel
    n. If the first sum would have to enter before the start of the stream (lead < taps - 1), the steps begin with
    replayed pixels of the history.

    Latency: `load` and `step` act on the outputs in the next cycle. Throughput: one step per cycle.

    Parameters
    ----------
    config : MlaConfig
        Machine configuration; uses `n`.

    Members
    -------
    load, step : In(1)
        `load` starts a stream with the values of the next seven inputs, which must be constant until the next `load`.
        `step` completes one step.
    period, lead, length, out_width, stride_x, stride_y, taps : In
        Fields x_count, dw_lead, dw_len, dw_out_w, dw_sx, dw_sy and taps of the command.
    back : Out
        Distance in pixels from the first pixel back to the pixel that this step replays; 0 if the step brings a new
        pixel.
    wave : Out(1)
        High if a sum enters the array with this step.
    first : Out(1)
        High if no sum has entered the array before this step.
    next_x, next_y : Out(1)
        `next_x` is high if the next sum is in the same row of outputs; `next_y` is high if it is the first sum of the
        next row.
    end : Out(1)
        High in the last step of the stream.
    """

    def __init__(self, config: MlaConfig):
        super().__init__(
            {
                "load": In(1),
                "step": In(1),
                "period": In(16),
                "lead": In(16),
                "length": In(20),
                "out_width": In(16),
                "stride_x": In(4),
                "stride_y": In(4),
                "taps": In(5),
                "back": Out((config.n - 1).bit_length()),
                "wave": Out(1),
                "first": Out(1),
                "next_x": Out(1),
                "next_y": Out(1),
                "end": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        ahead, pixels, skip, positions = (
            Signal(5),
            Signal(20, reset_less=True),
            Signal(16, reset_less=True),
            Signal(20, reset_less=True),
        )
        inside = Signal()
        final, home = self._last_pixel(pixels), self.brings_pixel()
        m.d.comb += [
            ahead.eq(self.taps - 1),
            inside.eq((skip == 0) & (positions != 0)),
            self.end.eq(home & final),
        ]
        with m.If(self.load):
            m.d.sync += [
                self.back.eq(Mux(self.lead < ahead, ahead - self.lead, 0)),
                skip.eq(Mux(self.lead > ahead, self.lead - ahead, 0)),
                pixels.eq(self.length),
                positions.eq(self.length - self.lead),
            ]
            self._register(m, final=self.length == 1, home=self.lead >= ahead)
        with m.Elif(self.step):
            with m.If(self.back != 0):
                m.d.sync += self.back.eq(self.back - 1)
                self._register(m, home=self.back == 1)
            with m.Else():
                m.d.sync += pixels.eq(pixels - 1)
                self._register(m, final=pixels == 2)
            with m.If(skip != 0):
                m.d.sync += skip.eq(skip - 1)
            with m.Elif(positions != 0):
                m.d.sync += positions.eq(positions - 1)
        self._outputs(m, inside)
        return m

    def brings_pixel(self) -> Value:
        """Return a value that is high if a new pixel arrives in this step, that is, if `back` is 0."""
        return self.back == 0

    def _last_pixel(self, pixels: Signal) -> Value:
        """Return a value that is high if one pixel remains."""
        return pixels == 1

    def _register(self, m: Module, **flags: Value) -> None:
        """Load the flags `final` (one pixel remains) and `home` (`back` is 0) with their next values, if they are
        registers.
        """

    def _outputs(self, m: Module, inside: Value) -> None:
        """Determine the positions with an output: out_width positions of a row, stride_x apart, in every stride_y-th
        row.
        """
        columns, outputs = Signal(16, reset_less=True), Signal(16, reset_less=True)
        phase_x, phase_y = Signal(4, reset_less=True), Signal(4, reset_less=True)
        row_end = Signal()
        m.d.comb += [
            row_end.eq(columns == 1),
            self.wave.eq(inside & (phase_x == 0) & (phase_y == 0) & (outputs != 0)),
            self.next_x.eq(self.wave & ~row_end),
            self.next_y.eq(inside & row_end & (phase_y == 0)),
        ]
        with m.If(self.load):
            m.d.sync += self.first.eq(1)
        with m.Elif(self.step & self.wave):
            m.d.sync += self.first.eq(0)
        with m.If(self.load | (self.step & inside & row_end)):
            m.d.sync += [columns.eq(self.period), outputs.eq(self.out_width), phase_x.eq(0)]
            m.d.sync += phase_y.eq(Mux(self.load | (phase_y + 1 == self.stride_y), 0, phase_y + 1))
        with m.Elif(self.step & inside):
            m.d.sync += [
                columns.eq(columns - 1),
                phase_x.eq(Mux(phase_x + 1 == self.stride_x, 0, phase_x + 1)),
            ]
            with m.If(self.wave):
                m.d.sync += outputs.eq(outputs - 1)


class PipelinedDepthwiseSteps(DepthwiseSteps):
    """`DepthwiseSteps` with the flags `final` and `home` in registers.

    Latency, throughput, parameters and members are the same as for `DepthwiseSteps`.
    """

    def __init__(self, config: MlaConfig):
        self._flags = {"final": Signal(), "home": Signal(name="home")}
        super().__init__(config)

    def brings_pixel(self) -> Value:
        """Return the register that is high while `back` is 0."""
        return self._flags["home"]

    def _last_pixel(self, pixels: Signal) -> Value:
        return self._flags["final"]

    def _register(self, m: Module, **flags: Value) -> None:
        m.d.sync += [self._flags[name].eq(value) for name, value in flags.items()]
