"""Address generator of FUSE: the five loops of a command, and affine addresses updated by additions."""

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.config import SP_ADDR_BITS, MlaConfig
from hw.fuse.layouts import INDEX_BITS, POINT, READ_CONTROL
from hw.isa.commands import FUSE_DIMS
from hw.isa.enums import Unit
from hw.layouts import command_layout, command_stream
from hw.lib.pipeline import pipeline_register, vacancy
from hw.lib.skid_buffer import SkidBuffer


class AddressWalk(wiring.Component):
    """Computes the address base + sum of index * stride over some loop dimensions, updated incrementally.

    A step that advances dimension L adds the stride of L to the value that the address had at the start of the current
    iteration of L, and restarts the dimensions inside L from the sum.

    Latency: `value` is updated one cycle after `load` or `step`. Throughput: one step per cycle.

    Parameters
    ----------
    width : int
        Width of the value in bits; arithmetic is modulo 2**width.
    dims : tuple of str
        Dimensions with a stride, innermost first; the value is constant along the others.

    Members
    -------
    load : In(1), base : In
        Load the start value `base`; the strides of the new command must be valid from `load` to the next `load`.
    step : In(1), level : In(3)
        Advance dimension FUSE_DIMS[level].
    stride_{dim} : In
        Stride of each dimension in `dims`.
    value : Out
        Current value of the address.
    """

    def __init__(self, *, width: int, dims: tuple[str, ...]):
        self._width, self._dims = width, dims
        strides = {f"stride_{dim}": In(signed(width)) for dim in dims}
        super().__init__(
            {
                "load": In(1),
                "base": In(signed(width)),
                "step": In(1),
                "level": In(3),
                "value": Out(signed(width)),
                **strides,
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        starts = {dim: Signal(signed(self._width), name=f"start_{dim}") for dim in self._dims}
        first = Signal(signed(self._width))
        origin, stride = Signal(signed(self._width)), Signal(signed(self._width))
        following = Signal(signed(self._width))
        with m.Switch(self.level):
            for level, dim in enumerate(FUSE_DIMS):
                with m.Case(level):
                    outer = [d for d in FUSE_DIMS[level:] if d in self._dims]
                    m.d.comb += origin.eq(starts[outer[0]] if outer else first)
                    if dim in self._dims:
                        m.d.comb += stride.eq(getattr(self, f"stride_{dim}"))
        origin, stride = self._register_summands(m, origin, stride)
        m.d.comb += following.eq(origin + stride)
        with m.If(self.load):
            m.d.sync += first.eq(self.base)
        for dim, start in starts.items():
            with m.If(self.load | (self.step & (self.level >= FUSE_DIMS.index(dim)))):
                m.d.sync += start.eq(Mux(self.load, self.base, following))
        m.d.comb += self.value.eq(starts[self._dims[0]])
        return m

    def _register_summands(self, m: Module, origin: Signal, stride: Signal) -> tuple[Signal, Signal]:
        """Return the summands that the adder uses; a subclass may register them."""
        return origin, stride


class PipelinedAddressWalk(AddressWalk):
    """`AddressWalk` with registers before its adder.

    Latency, throughput and parameters are those of `AddressWalk`.
    Members are those of `AddressWalk`, but `level` must be valid one cycle before the step.
    """

    def _register_summands(self, m: Module, origin: Signal, stride: Signal) -> tuple[Signal, Signal]:
        return pipeline_register(m, "origin_held", origin), pipeline_register(m, "stride_held", stride)


#: Width of u and v in bits; for a legal command they are in -65536..65535.
_COORDINATE_BITS = 18
_ALL = FUSE_DIMS


class PointWalker(wiring.Component):
    """Iterates over the loops of commands and emits one point for each step; the first point of the next command
    follows the last point of a command without a gap.

    Latency: two cycles from a command to its first point. Throughput: one point per cycle.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    cmd : In(stream)
        Commands whose points are emitted.
    read : In(READ_CONTROL)
        The decoder's read controls of the command at the stream's head.
    room : In(1)
        High if another command may enter the pipeline.
    load : Out(1), index : Out(2)
        High if a command enters the pipeline; index of this command.
    points : Out(stream of POINT)
        Points of the commands, in loop order.
    """

    def __init__(self, config: MlaConfig):
        self._config = config
        super().__init__(
            {
                "cmd": In(command_stream(Unit.FUSE)),
                "read": In(READ_CONTROL),
                "room": In(1),
                "load": Out(1),
                "index": Out(INDEX_BITS),
                "points": Out(stream.Signature(POINT)),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.buffer = buffer = SkidBuffer(POINT)
        wiring.connect(m, buffer.o, wiring.flipped(self.points))
        active, step = Signal(), Signal()
        command, index, reads = Signal(command_layout(Unit.FUSE)), Signal(INDEX_BITS), Signal(READ_CONTROL)
        level, at_end = self._loops(m, step, command)
        final = at_end.all()
        ready = self._ready(m, active, step)
        m.d.comb += [
            step.eq(ready & buffer.i.ready),
            buffer.i.valid.eq(ready),
            self.cmd.ready.eq(vacancy(active, step & final, self._config.pipelined) & self.room),
            self.load.eq(self.cmd.valid & self.cmd.ready),
        ]
        with m.If(self.load):
            m.d.sync += [
                active.eq(1),
                command.eq(self.cmd.payload),
                reads.eq(self.read),
                index.eq(self.index),
            ]
            m.d.sync += self.index.eq(self.index + 1)
        with m.Elif(step & final):
            m.d.sync += active.eq(0)
        self._point(m, buffer.i.payload, command, reads, step, level, at_end, index)
        return m

    def _ready(self, m: Module, active: Signal, step: Signal) -> Value:
        """Return a value that is high if a point is ready."""
        return active

    def _compare_ends(self, m: Module, left: dict[str, Signal], at_end: Signal) -> None:
        """Drive `at_end`, the mask of dimensions at their last step, from the numbers of remaining steps."""
        m.d.comb += at_end.eq(Cat(left[dim] == 0 for dim in _ALL))

    def _register_end(
        self,
        m: Module,
        number: int,
        at_end: Signal,
        *,
        left: Signal,
        command: Signal,
        step: Value,
        level: Value,
    ) -> None:
        """If `at_end` is a register, update its bit for one dimension.

        Parameters
        ----------
        m : Module
            Module that the logic is added to.
        number : int
            Index of the dimension.
        at_end : Signal
            Mask of the dimensions that are at their last step.
        left : Signal
            Number of remaining steps in the dimension.
        command : Signal
            Command whose points are being emitted.
        step, level : Value
            High if a dimension advances; index of this dimension.
        """

    def _loops(self, m: Module, step: Value, command: Signal) -> tuple[Signal, Signal]:
        """Add the loop counters, and return the dimension that advances next and the mask of dimensions at their last
        step.
        """
        level, at_end = Signal(3), Signal(len(_ALL))
        left = {dim: Signal(16, name=f"left_{dim}") for dim in _ALL}
        self._compare_ends(m, left, at_end)
        for number in reversed(range(len(_ALL))):
            with m.If(~at_end[number]):
                m.d.comb += level.eq(number)
        for number, dim in enumerate(_ALL):
            with m.If(self.load):
                m.d.sync += left[dim].eq(self.cmd.payload[f"{dim}_count"] - 1)
            with m.Elif(step & (level == number)):
                m.d.sync += left[dim].eq(left[dim] - 1)
            with m.Elif(step & (level > number)):
                m.d.sync += left[dim].eq(command[f"{dim}_count"] - 1)
            self._register_end(m, number, at_end, left=left[dim], command=command, step=step, level=level)
        return level, at_end

    def _walk(
        self,
        m: Module,
        name: str,
        width: int,
        base: str,
        strides: dict[str, str],
        step: Value,
        level: Value,
        command: Signal,
    ) -> Value:
        address_walk = self._config.variant(AddressWalk, PipelinedAddressWalk)
        m.submodules[f"walk_{name}"] = walk = address_walk(width=width, dims=tuple(strides))
        m.d.comb += [
            walk.load.eq(self.load),
            walk.base.eq(self.cmd.payload[base]),
            walk.step.eq(step),
            walk.level.eq(level),
            *(getattr(walk, f"stride_{dim}").eq(command[field]) for dim, field in strides.items()),
        ]
        return walk.value

    def _point(
        self,
        m: Module,
        point: Value,
        command: Signal,
        reads: Signal,
        step: Value,
        level: Value,
        at_end: Value,
        index: Value,
    ) -> None:
        a_strides = {"wx": "a_dwx", "wy": "a_dwy", "x": "a_dx", "y": "a_dy", "n": "a_n"}
        common = (step, level, command)
        m.d.comb += point.a.eq(self._walk(m, "a", SP_ADDR_BITS, "a_start", a_strides, *common))
        for name in "brd":
            strides = {dim: f"{name}_{dim}" for dim in _ALL}
            m.d.comb += point[name].eq(self._walk(m, name, SP_ADDR_BITS, f"{name}_base", strides, *common))
        m.d.comb += point.slot.eq(self._walk(m, "slot", 8, "p_base", {"x": "p_x", "n": "p_n"}, *common))
        inside = []
        for name, strides in (("u", {"wy": "u_wy", "y": "u_y"}), ("v", {"wx": "v_wx", "x": "v_x"})):
            value = self._walk(m, name, _COORDINATE_BITS, f"{name}0", strides, *common)
            limit = command[f"{name}_lim"]
            within = Signal(name=f"{name}_inside")
            m.d.comb += within.eq((limit == 0) | ((value >= 0) & (value < limit)))
            inside.append(within)
        live, first, fresh, b_new = Signal(), Signal(), Signal(), Signal()
        last_b = Signal(unsigned(SP_ADDR_BITS))
        m.d.comb += [live.eq(inside[0] & inside[1]), b_new.eq(fresh | (last_b != point.b))]
        with m.If(self.load):
            m.d.sync += [first.eq(1), fresh.eq(1)]
        with m.Elif(step):
            m.d.sync += [first.eq(level >= _ALL.index("x")), fresh.eq(0)]
        with m.If(step):
            m.d.sync += last_b.eq(point.b)
        last = at_end[0] & at_end[1]
        m.d.comb += [
            point.sp_need.eq(Cat(Mux(live, reads.a_sp, 0), Mux(b_new, reads.b_sp, 0), reads.r_sp)),
            point.acc_need.eq(Cat(live & reads.a_acc, b_new & reads.b_acc)),
            point.live.eq(live),
            point.first.eq(first),
            point.last.eq(last),
            point.final.eq(at_end.all()),
            point.tail.eq(Cat(at_end, 0, 0, 0).bit_select(command.stage.tail_dim, 1)),
            point.emit.eq(reads.emit_all | last),
            point.cmd.eq(index),
        ]


class PipelinedPointWalker(PointWalker):
    """`PointWalker` with registered flags for the ends of loops, which are set one cycle before they are used.

    Latency: one cycle more than `PointWalker`. Throughput: one point every two cycles; there is a gap of one cycle
    between commands. Parameters and members are those of `PointWalker`.
    """

    def _ready(self, m: Module, active: Signal, step: Signal) -> Value:
        """Return a value that is high if a point is ready, from the second cycle on in which the point is valid."""
        stood = Signal()
        m.d.sync += stood.eq(active & ~step)
        return active & stood

    def _compare_ends(self, m: Module, left: dict[str, Signal], at_end: Signal) -> None:
        pass

    def _register_end(
        self,
        m: Module,
        number: int,
        at_end: Signal,
        *,
        left: Signal,
        command: Signal,
        step: Value,
        level: Value,
    ) -> None:
        count = f"{_ALL[number]}_count"
        with m.If(self.load):
            m.d.sync += at_end[number].eq(self.cmd.payload[count] == 1)
        with m.Elif(step & (level == number)):
            m.d.sync += at_end[number].eq(left == 1)
        with m.Elif(step & (level > number)):
            m.d.sync += at_end[number].eq(command[count] == 1)
