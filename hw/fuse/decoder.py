"""Decoder of FUSE commands, which derives the controls of every stage."""

from amaranth.hdl import Cat, Const, Elaboratable, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.fuse.layouts import controls
from hw.isa.enums import PAIRS, BSource, Dtype, Op, Post, Reduce, Requant, Rounding, Unit
from hw.layouts import command_layout

_MIN, _MAX = -(1 << 31), (1 << 31) - 1
#: Exponent for which `scale` with multiplier 1 is the identity.
_IDENTITY = 31
_READS = {Dtype.I8: 0b0001, Dtype.U8: 0b0001, Dtype.I16: 0b0011, Dtype.I32: 0b1111}
_RANGES = {Dtype.I8: (-128, 127), Dtype.U8: (0, 255), Dtype.I16: (-32768, 32767), Dtype.I32: (_MIN, _MAX)}


def _pick(m: Module, name: str, shape: object, select: Value, choices: dict, default: int) -> Signal:
    """Return a signal with the entry of `choices` for the value of `select`, or `default` if there is no entry."""
    picked = Signal(shape, name=name)
    with m.Switch(select):
        for value, choice in choices.items():
            with m.Case(int(value)):
                m.d.comb += picked.eq(choice)
        with m.Default():
            m.d.comb += picked.eq(default)
    return picked


class Decoder(wiring.Component):
    """Decodes the packed words and related fields of FUSE into the controls of each stage, so that the stages need no
    decoding.

    Disabled steps are decoded to neutral values: a disabled requantization or post-scale is a multiplication by one, an
    absent operand is not read, and an accumulator operand is an int32 with zero point 0.

    Latency: combinational. Throughput: one command per cycle.

    Parameters
    ----------
    config : MlaConfig
        Machine configuration; uses `n`, the width of the lane masks.

    Members
    -------
    cmd : In(command)
        FUSE command to decode.
    may_leave : In(1)
        High if a command that ends with step 3 may leave the pipeline there.
    read, source, op, requant, table, bypass, residual, table2, reduce, post, writer : Out
        Controls of each stage (see hw.fuse.layouts).
    """

    def __init__(self, config: MlaConfig):
        self._n = config.n
        layouts = {name: Out(layout) for name, layout in controls(config.n).items()}
        super().__init__({"cmd": In(command_layout(Unit.FUSE)), "may_leave": In(1), **layouts})

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        self._operands(m)
        self._requant(m)
        self._tables_and_residual(m)
        self._masks(m)
        self._result(m)
        return m

    def _operands(self, m: Module) -> None:
        cmd, src, stage = self.cmd, self.cmd.src, self.cmd.stage
        a_sp, b_sp = src.a_src == 1, src.b_src == BSource.SP
        a_reads = _pick(m, "a_reads", 4, src.a_dtype, _READS, 0)
        b_reads = _pick(m, "b_reads", 4, src.b_dtype, _READS, 0)
        r_reads = _pick(m, "r_reads", 2, stage.r_dtype, {d: _READS[d] & 3 for d in Dtype}, 0)
        m.d.comb += [
            self.read.a_sp.eq(Mux(a_sp, a_reads, 0)),
            self.read.a_acc.eq(~a_sp),
            self.read.b_sp.eq(Mux(b_sp, b_reads, 0)),
            self.read.b_acc.eq(src.b_src == BSource.ACC),
            self.read.r_sp.eq(Mux(stage.residual, r_reads, 0)),
            self.read.emit_all.eq(stage.reduce == Reduce.NONE),
            self.source.a_dtype.eq(Mux(a_sp, src.a_dtype, Dtype.I32)),
            self.source.b_dtype.eq(Mux(b_sp, src.b_dtype, Dtype.I32)),
            self.source.r_dtype.eq(stage.r_dtype),
            self.source.b_on.eq(src.b_src != BSource.NONE),
            self.source.b_bcast.eq(src.b_bcast),
            self.source.b_lane.eq(src.b_lane),
            self.source.rq_lane.eq(src.rq_lane),
            self.source.a_zp.eq(Mux(a_sp, cmd.zp_ab[:16].as_signed(), 0)),
            self.source.b_zp.eq(Mux(b_sp, cmd.zp_ab[16:].as_signed(), 0)),
            self.source.a_float.eq(stage.a_float),
            self.op.add.eq(src.op == Op.ADD),
            self.op.sub.eq(src.op == Op.SUB),
            self.op.product.eq((src.op == Op.MUL) | (src.op == Op.SQUARE) | (src.op == Op.MUL_SUB)),
            self.op.square.eq(src.op == Op.SQUARE),
            self.op.mul_sub.eq(src.op == Op.MUL_SUB),
            self.op.factor.eq(cmd.mult[:18].as_signed()),
            self.op.shift.eq(cmd.op_shift),
            self.op.bias_slot.eq(src.bias_en & (src.requant == Requant.SLOT)),
            self.op.reads_bias.eq((src.bias_en & (src.requant == Requant.SLOT)) | (stage.post == Post.SLOT)),
            self.op.bias.eq(Mux(src.bias_en & (src.requant != Requant.SLOT), cmd.bias, 0)),
        ]

    def _requant(self, m: Module) -> None:
        cmd, src, rq = self.cmd, self.cmd.src, self.requant
        off, to_float = src.requant == Requant.OFF, cmd.stage.to_float
        m.d.comb += [
            rq.slot.eq(src.requant == Requant.SLOT),
            rq.row.eq(src.requant == Requant.ROW),
            rq.neg_en.eq(src.neg_en & ~off),
            rq.mult.eq(Mux(off, 1, cmd.mult)),
            rq.exponent.eq(Mux(off, _IDENTITY, cmd.shifts[:8].as_signed())),
            rq.neg_mult.eq(cmd.neg_mult),
            rq.neg_exponent.eq(cmd.shifts[8:16].as_signed()),
            rq.rounding.eq(Mux(to_float, Rounding.EVEN, Mux(off, Rounding.SINGLE, src.rounding))),
            rq.zp.eq(Mux(to_float, 0, cmd.zp)),
            rq.lo.eq(Mux(to_float, Const(_MIN, signed(32)), _least(m, "rq_low", cmd.clip_lo, cmd.clip_hi))),
            rq.hi.eq(Mux(to_float, Const(_MAX, signed(32)), cmd.clip_hi)),
            rq.count_all.eq(cmd.stage.reduce == Reduce.NONE),
            rq.to_float.eq(to_float),
        ]

    def _tables_and_residual(self, m: Module) -> None:
        cmd, stage, res = self.cmd, self.cmd.stage, self.residual
        m.d.comb += [
            self.table.enable.eq(stage.table),
            self.table.slot.eq(stage.table_slot),
            self.table.wide.eq(stage.table_wide),
            self.table2.enable.eq(stage.table2 | stage.table_wide),
            self.table2.slot.eq(stage.table_slot + stage.table_wide),
            self.table2.wide.eq(stage.table_wide),
            res.enable.eq(stage.residual),
            res.rounding.eq(Mux(stage.r_raw, Rounding.SINGLE, cmd.src.rounding)),
            res.raw.eq(stage.r_raw),
            res.ls.eq(stage.r_ls),
            res.x_zp.eq(cmd.zp_xr[:16].as_signed()),
            res.r_zp.eq(cmd.zp_xr[16:].as_signed()),
            res.x_mult.eq(cmd.x_mult),
            res.r_mult.eq(cmd.r_mult),
            res.o_mult.eq(cmd.o_mult),
            res.x_exponent.eq(cmd.r_shifts[:8].as_signed()),
            res.r_exponent.eq(cmd.r_shifts[8:16].as_signed()),
            res.o_exponent.eq(cmd.r_shifts[16:24].as_signed()),
            res.bias.eq(cmd.r_bias),
            res.zp.eq(cmd.o_zp),
            res.lo.eq(_least(m, "residual_low", cmd.r_lo, cmd.r_hi)),
            res.hi.eq(cmd.r_hi),
        ]

    def _masks(self, m: Module) -> None:
        """Drive the masks of active lanes: one for an ordinary point, one for a point in the last step of tail_dim."""
        for name, count in (("mask", self.cmd.lanes), ("mask_tail", self.cmd.lanes_tail)):
            mask = Signal(unsigned(self._n), name=name)
            every = count == 0
            m.d.comb += mask.eq(Cat(every | (count > lane) for lane in range(self._n)))
            m.d.comb += [
                stage[name].eq(mask)
                for stage in (self.requant, self.bypass, self.reduce, self.post, self.writer)
            ]

    def _result(self, m: Module) -> None:
        cmd, stage, post, out = self.cmd, self.cmd.stage, self.post, self.writer
        none, pair, variance = (Signal(name=f"post_{name}") for name in ("none", "pair", "variance"))
        plain = Signal(name="post_plain")
        m.d.comb += [
            none.eq(stage.post == Post.NONE),
            pair.eq(Cat(stage.post == each for each in PAIRS).any()),
            variance.eq(stage.post == Post.VAR_RSQRT),
            plain.eq(none | (pair & (cmd.post_mult == 0))),
        ]
        unlimited = none | pair
        dtype = Mux(stage.d_dst, stage.d_dtype, Dtype.I32)
        scalar = stage.lane_reduce != Reduce.NONE
        reduced = (stage.reduce != Reduce.NONE) | scalar
        m.d.comb += [
            self.bypass.early.eq(
                self.may_leave & none & ~(stage.table_wide | stage.residual | stage.table2 | reduced)
            ),
            self.bypass.low.eq(post.low),
            self.bypass.high.eq(post.high),
            self.reduce.reduce.eq(stage.reduce),
            self.reduce.lane_reduce.eq(stage.lane_reduce),
            post.bias.eq(Mux(none, 0, cmd.post_bias)),
            post.count.eq(stage.post == Post.COUNT),
            post.mult.eq(Mux(plain, 1, cmd.post_mult)),
            post.exponent.eq(
                Mux(plain, _IDENTITY, Mux(pair, cmd.root_shifts[:8].as_signed(), cmd.post_shift))
            ),
            post.square_exponent.eq(cmd.root_shifts[8:].as_signed()),
            post.rounding.eq(Mux(plain, Rounding.SINGLE, stage.post_rounding)),
            post.row.eq(stage.post == Post.ROW),
            post.slot.eq(stage.post == Post.SLOT),
            post.variance.eq(variance),
            post.zp.eq(Mux(unlimited & ~variance, 0, cmd.post_zp)),
            post.hi.eq(Mux(unlimited, Const(_MAX, signed(32)), cmd.post_hi)),
            post.lo.eq(
                Mux(unlimited, Const(_MIN, signed(32)), _least(m, "post_low", cmd.post_lo, cmd.post_hi))
            ),
            post.low.eq(_pick(m, "type_low", signed(32), dtype, {d: r[0] for d, r in _RANGES.items()}, _MIN)),
            post.high.eq(
                _pick(m, "type_high", signed(32), dtype, {d: r[1] for d, r in _RANGES.items()}, _MAX)
            ),
            post.scalar.eq(scalar),
            post.pair.eq(pair),
            post.root.eq(stage.post != Post.RECIP),
            post.emit_all.eq(stage.reduce == Reduce.NONE),
            out.sp.eq(stage.d_dst),
            out.dtype.eq(dtype),
            out.scalar.eq(scalar),
            out.d_lane.eq(cmd.src.d_lane),
            out.pair.eq(pair),
            out.exponent.eq(cmd.post_shift),
            out.scaled.eq(cmd.src.requant != Requant.OFF),
            out.table.eq(stage.table | stage.table2),
            out.residual.eq(stage.residual),
            out.reduced.eq(reduced),
        ]


def _least(m: Module, name: str, lo: Value, hi: Value) -> Signal:
    """Return the minimum of `lo` and `hi`, so that clipping gives `hi` if `lo` exceeds it, whichever limit is applied
    first.
    """
    least = Signal(signed(32), name=name)
    m.d.comb += least.eq(Mux(lo > hi, hi, lo))
    return least
