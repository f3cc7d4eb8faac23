"""Rigid pipeline of FUSE (without flow control), from the operand registers to the elements of the result."""

from itertools import pairwise

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.fuse import binary_op, bypass, operand_fetch, post_scale, requant, residual, tables
from hw.fuse.binary_op import BinaryOperator
from hw.fuse.bypass import Bypass
from hw.fuse.layouts import BEAT, control_write, controls, lanes, lanes_of
from hw.fuse.operand_fetch import OperandFetch
from hw.fuse.params import Params
from hw.fuse.post_scale import SUM_BITS, PostScale
from hw.fuse.reduce import WINDOW_LATENCY, LaneReduce, WindowReduce, lane_reduce_latency
from hw.fuse.requant import COUNT_BITS, Requantizer
from hw.fuse.residual import Residual
from hw.fuse.tables import TableLookup
from hw.lib.delay_line import DelayLine
from hw.lib.pipeline import pipeline_delay, pipeline_register
from hw.memory.ports import SlotWritePort

#: Stages in order, and the names of the controls of each.
STAGES = {
    "source": "source",
    "op": "op",
    "requant": "requant",
    "table": "table",
    "bypass": "bypass",
    "residual": "residual",
    "table2": "table2",
    "reduce": "reduce",
    "lane_reduce": "reduce",
    "post": "post",
}
#: Cycles from the operands to the residual stage.
_TO_RESIDUAL = binary_op.LATENCY + requant.LATENCY + tables.LATENCY


def _requant_to_post(config: MlaConfig) -> int:
    """Return the number of cycles from a value of step 2 to the reduced value."""
    steps = requant.LATENCY + tables.LATENCY + residual.LATENCY + tables.LATENCY
    return steps + WINDOW_LATENCY + lane_reduce_latency(config)


def latency(config: MlaConfig) -> int:
    """Return the number of cycles from a beat at the operand registers to the end of the pipeline."""
    late = WINDOW_LATENCY + lane_reduce_latency(config) + post_scale.LATENCY
    return operand_fetch.LATENCY + _TO_RESIDUAL + residual.LATENCY + tables.LATENCY + late


def early_latency() -> int:
    """Return the number of cycles from a beat at the operand registers to the bypass after step 3."""
    return operand_fetch.LATENCY + _TO_RESIDUAL + bypass.LATENCY


class Pipeline(wiring.Component):
    """Pipeline of steps 1 to 5 and the saturation of step 6; no stage ever stalls.

    The beats of a command whose control `early` is set leave after step 3. Such a command must not enter while another
    command has beats beyond this step, or will have.

    Latency: latency(config), or early_latency() for a command that leaves early. Throughput: one beat per cycle.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    controls_{stage} : In
        Controls of a command that enters the pipeline, for each of STAGES.
    adding : In(1)
        High if a command in the pipeline adds a residual.
    slot_write : In
        Writes of parameter slots and tables.
    sp_data, acc_data, sp_load, acc_load, beat : In
        Operands and beats, see `OperandFetch`.
    o_beat : Out(BEAT), o : Out(lanes), o_changed : Out
        Beat at the output, its elements, and the number of lanes that clipping has changed.
    o_pair, o_root : Out(1)
        High if the beat's first element is the operand of a reciprocal, and if its root is needed first.
    o_emit : Out(1)
        High if the beat's point completes a result.
    """

    def __init__(self, config: MlaConfig):
        self._config = config
        layouts = controls(config.n)
        super().__init__(
            {
                **{f"controls_{stage}": In(control_write(layouts[kind])) for stage, kind in STAGES.items()},
                "adding": In(1),
                "slot_write": In(SlotWritePort(config)),
                "sp_data": In(8 * config.n),
                "acc_data": In(32 * config.n),
                "sp_load": In(10),
                "acc_load": In(2),
                "beat": In(BEAT),
                "o_beat": Out(BEAT),
                "o": Out(lanes(lanes_of(config))),
                "o_changed": Out(SUM_BITS),
                "o_pair": Out(1),
                "o_root": Out(1),
                "o_emit": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        config = self._config
        m.submodules.source = self._source = OperandFetch(config)
        m.submodules.params = self._params = Params(config)
        m.submodules.op = self._op = BinaryOperator(config)
        m.submodules.requant = self._requant = Requantizer(config)
        m.submodules.table = self._table = TableLookup(config, high=False)
        m.submodules.bypass = self._bypass = Bypass(config)
        m.submodules.residual = self._residual = Residual(config)
        m.submodules.table2 = self._table2 = TableLookup(config, high=True)
        m.submodules.reduce = self._reduce = WindowReduce(config)
        m.submodules.lane_reduce = self._lane_reduce = LaneReduce(config)
        m.submodules.post = self._post = PostScale(config)
        m.d.comb += [
            getattr(self, f"_{stage}").controls.eq(getattr(self, f"controls_{stage}")) for stage in STAGES
        ]
        self._operands(m)
        self._parameters(m)
        self._values(m)
        self._results(m)
        return m

    def _operands(self, m: Module) -> None:
        source_, op = self._source, self._op
        m.d.comb += [
            *(
                getattr(source_, n).eq(getattr(self, n))
                for n in ("sp_data", "acc_data", "sp_load", "acc_load", "beat")
            ),
            op.beat.eq(source_.o_beat),
            op.a.eq(source_.a),
            op.b.eq(source_.b),
        ]

    def _parameters(self, m: Module) -> None:
        """Connect the parameters of slots and rows, each in the cycle in which its stage uses it."""
        source_, op, params, requant_ = self._source, self._op, self._params, self._requant
        for target in (params.write, self._table.write, self._table2.write):
            for name in ("valid", "table", "addr", "data"):
                m.d.comb += getattr(target, name).eq(getattr(self.slot_write, name))
        # The bias is needed one cycle before the multipliers; both reads start when the operands are at the output of
        # OperandFetch.
        beat = source_.o_beat
        later = pipeline_register(m, "later_beat", beat)
        m.d.comb += [
            params.bias_en.eq(op.bias_en),
            params.bias_slot.eq(beat.slot),
            params.bias_part.eq(beat.part),
            params.scale_en.eq(later.valid),
            params.scale_slot.eq(later.slot),
            params.scale_part.eq(later.part),
            op.bias.eq(params.bias),
            *(
                getattr(requant_, n).eq(getattr(params, n))
                for n in ("mult", "exponent", "neg_mult", "neg_exponent")
            ),
        ]
        for name in ("row_mult", "row_exponent", "a_exponent"):
            value = Value.cast(getattr(source_, name))
            m.d.comb += Value.cast(getattr(requant_, name)).eq(
                pipeline_delay(m, name, value, binary_op.LATENCY)
            )
        # The post-scale needs the bias in the cycle of its value, the others one cycle later, like step 2.
        late = [
            (getattr(self._post, name), getattr(params, name)) for name in ("bias", "mult", "exponent")
        ] + [(getattr(self._post, name), getattr(requant_, name)) for name in ("row_mult", "row_exponent")]
        sources = Cat(Value.cast(source) for _, source in late)
        m.submodules.late = delayed = DelayLine(width=len(sources), cycles=_requant_to_post(self._config) + 1)
        m.d.comb += [delayed.i.eq(sources), Cat(Value.cast(target) for target, _ in late).eq(delayed.o)]

    def _values(self, m: Module) -> None:
        """Add the stages of steps 2 to 4."""
        m.d.comb += self._residual.adding.eq(self.adding)
        m.d.comb += [self._requant.beat.eq(self._op.o_beat), self._requant.value.eq(self._op.value)]
        m.submodules.elements = elements = DelayLine(width=16 * lanes_of(self._config), cycles=_TO_RESIDUAL)
        m.d.comb += [elements.i.eq(self._source.r.as_value()), self._residual.r.as_value().eq(elements.o)]
        m.d.comb += self._bypass.changed.eq(self._requant.changed)
        chain = (self._requant, self._table, self._bypass, self._residual, self._table2, self._reduce)
        for before, after in pairwise(chain):
            m.d.comb += [after.beat.eq(before.o_beat), after.value.eq(before.o)]

    def _results(self, m: Module) -> None:
        """Add the stages of steps 5 and 6."""
        reduce_, lanes_, post_, bypass_ = self._reduce, self._lane_reduce, self._post, self._bypass
        early = bypass_.early_beat.valid
        counted = operand_fetch.LATENCY + binary_op.LATENCY + requant.LATENCY + 1
        m.submodules.changed = changed = DelayLine(
            width=COUNT_BITS, cycles=latency(self._config) - counted - post_scale.CHANGED_BEFORE
        )
        m.d.comb += [
            lanes_.beat.eq(reduce_.o_beat),
            lanes_.value.eq(reduce_.o),
            lanes_.any.eq(reduce_.any),
            lanes_.count.eq(reduce_.count),
            post_.beat.eq(lanes_.o_beat),
            post_.value.eq(lanes_.o),
            post_.count.eq(lanes_.o_count),
            changed.i.eq(self._requant.changed),
            post_.changed.eq(changed.o),
            self.o_beat.eq(Mux(early, bypass_.early_beat, post_.o_beat)),
            self.o.eq(Mux(early, bypass_.early, post_.o)),
            self.o_changed.eq(Mux(early, bypass_.early_changed, post_.o_changed)),
            self.o_pair.eq(post_.o_pair & ~early),
            self.o_root.eq(post_.o_root),
            self.o_emit.eq(post_.o_emit | early),
        ]
