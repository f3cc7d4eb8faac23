"""Line buffer, which delays a stream of pixels so that up to three image rows are available at the same time."""

from amaranth.hdl import Elaboratable, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.array.systolic import OPERAND_BITS
from hw.config import MlaConfig
from hw.lib.ram import Ram

LINES = 3


def line_step_layout(config: MlaConfig) -> data.StructLayout:
    """Return the layout of one step of a depthwise stream.

    `pixel`: set if the step brings a new pixel; otherwise the step replays the pixel that is `back` (at least 1)
    positions before the next new pixel. `fresh`: set if all pixels before this step count as zero. `period`: number of
    pixels of an image row. `taps`, `groups`: shape of the kernel.
    """
    return data.StructLayout(
        {
            "pixel": 1,
            "fresh": 1,
            "back": (config.n - 1).bit_length(),
            "period": (config.line_depth - 1).bit_length(),
            "taps": 5,
            "groups": 2,
        }
    )


class LineBuffer(wiring.Component):
    """History of the pixel stream, read at up to three distances.

    With G groups, line g carries pixel s - (G-1-g) * period in the cycle that is g * taps cycles after step s. The
    first delay counts pixels and is provided by a history memory for each line; the second counts cycles and is
    provided by a small ring. The two delays make the array a transposed FIR filter (docs/machine.md, depthwise mode):
    the sum that enters the array with step s meets pixel s - (G-1-g) * period + t in array row g * taps + t. The sum of
    stream position n therefore enters with step n - (taps-1).

    Pixels before a `fresh` step, or before the oldest stored pixel, are zero. Steps of one stream must follow each
    other without a gap; `taps` and `groups` may change only n or more cycles after the last step.

    Latency: if `step` is valid in cycle c, its pixel must be on `row` in cycle c + 2 and appears on the lines in cycle
    c + 3, plus the delay of the line. Throughput: one step per cycle.

    Parameters
    ----------
    config : MlaConfig
        Machine configuration; uses `n`, `line_depth`.

    Members
    -------
    valid : In(1), step : In(line_step_layout)
        Step of the pixel stream, accepted in every cycle with `valid`.
    row : In(9 * n)
        Pixel of the step that was valid two cycles before.
    line0, line1, line2 : Out(9 * n)
        Delayed pixels of each line, for the systolic array.
    live : Out(1)
        High while a step may still be inside the buffers or the array.
    """

    def __init__(self, config: MlaConfig):
        self.n, self.depth = config.n, config.line_depth
        self.width = OPERAND_BITS * config.n
        super().__init__(
            {
                "valid": In(1),
                "step": In(line_step_layout(config)),
                "row": In(self.width),
                "line0": Out(self.width),
                "line1": Out(self.width),
                "line2": Out(self.width),
                "live": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        bits = (self.depth - 1).bit_length()
        s1 = {
            "valid": Signal(name="s1_valid"),
            "pixel": Signal(name="s1_pixel"),
            "fresh": Signal(name="s1_fresh"),
        }
        m.d.sync += [
            s1["valid"].eq(self.valid),
            s1["pixel"].eq(self.valid & self.step.pixel),
            s1["fresh"].eq(self.valid & self.step.fresh),
        ]
        taps, distances = self._distances(m)

        # Stage 1: address of the next pixel, number of pixels stored before it.
        pointer, age, known = Signal(bits, reset_less=True), Signal(bits), Signal(bits)
        m.d.comb += known.eq(Mux(s1["fresh"], 0, age))
        with m.If(s1["valid"]):
            m.d.sync += age.eq(Mux(s1["pixel"] & ~known.all(), known + 1, known))
        with m.If(s1["pixel"]):
            m.d.sync += pointer.eq(pointer + 1)
        write, write_to = Signal(), Signal(bits, reset_less=True)
        m.d.sync += [write.eq(s1["pixel"]), write_to.eq(pointer)]

        lines = []
        for g, distance in enumerate(distances):
            depth = self.depth if g < LINES - 1 else self.n
            m.submodules[f"history{g}"] = history = Ram(width=self.width, depth=depth, transparent=True)
            direct, exists = Signal(name=f"direct{g}"), Signal(name=f"exists{g}")
            m.d.comb += [
                history.w_en.eq(write),
                history.w_addr.eq(write_to),
                history.w_data.eq(self.row),
                history.r0_en.eq(s1["valid"]),
                history.r0_addr.eq(pointer - distance),
            ]
            m.d.sync += [direct.eq(distance == 0), exists.eq(known >= distance)]
            line = Signal(self.width, name=f"undelayed{g}", reset_less=True)
            with m.If(self.live):
                m.d.sync += line.eq(Mux(direct, self.row, Mux(exists, history.r0_data, 0)))
            lines.append(line)
        self._rings(m, taps, lines)
        self._live(m)
        return m

    def _distances(self, m: Module) -> tuple[Signal, list[Signal]]:
        """Return, for the step in stage 1, the number of taps, and each line's distance in pixels behind the next
        pixel.
        """
        taps = Signal(5, reset_less=True)
        period, twice = self.step.period, Signal(len(self.step.period))
        m.d.comb += twice.eq(period << 1)
        distances = []
        for g in range(LINES):
            rows_back = Signal(len(period), name=f"rows_back{g}")
            with m.If(self.step.groups == g + 2):
                m.d.comb += rows_back.eq(period)
            with m.Elif(self.step.groups == g + 3):
                m.d.comb += rows_back.eq(twice)
            distance = Signal(len(period), name=f"distance{g}", reset_less=True)
            with m.If(self.valid):
                m.d.sync += distance.eq(rows_back + self.step.back)
            distances.append(distance)
        with m.If(self.valid):
            m.d.sync += taps.eq(self.step.taps)
        return taps, distances

    def _rings(self, m: Module, taps: Signal, lines: list[Signal]) -> None:
        """Drive line 0 without delay, and lines 1 and 2 with a delay of taps and 2 * taps cycles."""
        now = Signal((self.n - 1).bit_length())
        m.d.sync += now.eq(now + 1)
        m.d.comb += self.line0.eq(lines[0])
        for g, output in ((1, self.line1), (2, self.line2)):
            m.submodules[f"ring{g}"] = ring = Ram(width=self.width, depth=self.n, comb=True)
            m.d.comb += [
                ring.w_en.eq(self.live),
                ring.w_addr.eq(now),
                ring.w_data.eq(lines[g]),
                ring.r0_addr.eq(now - (taps << (g - 1))),
                output.eq(ring.r0_data),
            ]

    def _live(self, m: Module) -> None:
        """Drive `live`, which remains high until the last step has left the rings, the skew registers and the array.

        The rings, the skew registers and each of the two directions of the array take less than n cycles.
        """
        left = Signal(range(4 * self.n + 4))
        with m.If(self.valid):
            m.d.sync += [left.eq(4 * self.n + 3), self.live.eq(1)]
        with m.Elif(left != 0):
            m.d.sync += [left.eq(left - 1), self.live.eq(left != 1)]
