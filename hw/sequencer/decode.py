"""Second stage of the sequencer core: decoding, operands and branch targets."""

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.isa.enums import Unit
from hw.isa.micro_instruction import (
    FORMS,
    MAX_OPERANDS,
    OPERAND_BASE,
    STATISTIC_BASE,
    WORD,
    Class,
    MicroOp,
    Statistic,
)
from hw.layouts import PC_BITS, STATISTICS_LAYOUT, packed_layout
from hw.lib.pipeline import enable_register
from hw.sequencer.layouts import (
    COUNTER_BITS,
    EXECUTE_LAYOUT,
    FRAME_LAYOUT,
    OUT_BIT,
    PLAIN,
    Fault,
    InstructionKind,
    field_exists,
)
from hw.sequencer.register_file import RegisterFile

_BRANCHES = (MicroOp.BEQ, MicroOp.BNE, MicroOp.BLT, MicroOp.BGE, MicroOp.BLTU, MicroOp.BGEU)


def find_kind(m: Module, opcode: Value) -> dict[str, Signal]:
    """Decode the kind of an instruction; return the members `kind` and `plain` of EXECUTE_LAYOUT by name."""
    kind, plain = Signal(InstructionKind.RET.bit_length(), name="kind"), Signal(name="plain")
    with m.Switch(opcode):
        with m.Case(*map(int, _BRANCHES)):
            m.d.comb += kind.eq(InstructionKind.BRANCH)
        for name in (
            kind.name
            for kind in InstructionKind
            if kind not in (InstructionKind.SCALAR, InstructionKind.BRANCH)
        ):
            with m.Case(int(MicroOp[name])):
                m.d.comb += kind.eq(InstructionKind[name])
    with m.Switch(kind), m.Case(*map(int, PLAIN)):
        m.d.comb += plain.eq(1)
    return {"kind": kind, "plain": plain}


def find_targets(m: Module, word: data.View, pc: Value, base: Value) -> dict[str, Signal]:
    """Return the instruction addresses of EXECUTE_LAYOUT and the flag `backward`.

    They are computed in this stage, so that no adder follows a decision of the execute stage.

    Parameters
    ----------
    m : Module
        Module that the logic is added to.
    word : View
        Instruction word to decode.
    pc : Value
        Address of the instruction, COUNTER_BITS wide.
    base : Value
        Address of the first word of the instruction's segment.

    Returns
    -------
    dict
        Members of EXECUTE_LAYOUT by name.
    """
    found = {name: Signal(COUNTER_BITS, name=name) for name in ("target", "following", "arrive")}
    backward, loop = Signal(name="backward"), word.opcode == MicroOp.LOOP
    target, following = found["target"], found["following"]
    m.d.comb += [
        target.eq(
            Cat(
                (base + word.imm[:PC_BITS].as_unsigned())[:OUT_BIT],
                word.imm[PC_BITS:16].any() | (~loop & word.imm[16:].any()),
            )
        ),
        following.eq(pc + 1),
        found["arrive"].eq(Mux(loop, target - 1, pc)),
        backward.eq(target <= following),
    ]
    return found | {"backward": backward}


WORD_LAYOUT = packed_layout(WORD)
_INDEX = (OPERAND_BASE - 1).bit_length()


class Decode(wiring.Component):
    """Decode stage, which decodes an instruction and reads its operands.

    Latency: 1 cycle, or 2 if both selectors name macro operands. Throughput: one instruction in as many cycles as the
    latency.

    Parameters
    ----------
    config : MlaConfig
        Machine configuration; uses `n` and `segments`.

    Members
    -------
    word, pc, valid : In, take : Out
        Instruction from the fetch stage.
    flush : In
        Discard the instruction in this stage.
    clear : In
        Set all registers to 0, because a program starts.
    frame, operands, statistics, tag : In
        Running segment, number of operands of the macro-instruction, statistics, and current tag.
    operand_addr : Out, operand_data : In
        Port of the macro operand buffer, with a latency of one cycle.
    w_en, w_addr, w_data : In
        Register write of the preceding instruction; its value is forwarded in the same cycle.
    commit : In
        High if the register write takes effect.
    instruction : Out
        Instruction with operands, registered.
    ready_valid : Out
        High if `instruction` is valid.
    accept : In
        High if the execute stage accepts an instruction.
    """

    def __init__(self, config: MlaConfig):
        self.config = config
        super().__init__(
            {
                "word": In(WORD_LAYOUT),
                "pc": In(COUNTER_BITS),
                "valid": In(1),
                "take": Out(1),
                "flush": In(1),
                "clear": In(1),
                "frame": In(FRAME_LAYOUT),
                "operands": In(6),
                "operand_addr": Out(_INDEX),
                "operand_data": In(32),
                "statistics": In(STATISTICS_LAYOUT),
                "tag": In(6),
                "w_en": In(1),
                "w_addr": In(5),
                "w_data": In(32),
                "commit": In(1),
                "instruction": Out(EXECUTE_LAYOUT),
                "ready_valid": Out(1),
                "accept": In(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        word, pc, valid = Signal(WORD_LAYOUT), Signal(COUNTER_BITS), Signal()
        advance = Signal()
        m.d.comb += self.take.eq(self.valid & (~valid | advance))
        with m.If(self.flush):
            m.d.sync += valid.eq(0)
        with m.Elif(~valid | advance):
            m.d.sync += valid.eq(self.valid)
        with m.If(self.take):
            m.d.sync += [word.eq(self.word), pc.eq(self.pc)]
        decoded = self._decode(m, word)
        a_buffered, b_buffered, waits = self._buffer(m, word, valid)
        m.d.comb += advance.eq(valid & self.accept & ~waits)
        a, a_bad, b, b_bad = self._operands(m, word, decoded, a_buffered, b_buffered)
        fault, selector = Signal(range(len(Fault))), Signal(8)
        m.d.comb += selector.eq(Mux(a_bad, word.a, word.b))
        with m.If(pc[OUT_BIT] | (pc[:OUT_BIT] >= self.frame.limit)):
            m.d.comb += fault.eq(Fault.PC_RANGE)
        with m.Elif(decoded["illegal"]):
            m.d.comb += fault.eq(Fault.ILLEGAL)
        with m.Elif(a_bad | b_bad):
            m.d.comb += fault.eq(Fault.BAD_OPERAND)
        loop = word.opcode == MicroOp.LOOP
        found = find_targets(m, word, pc, self.frame.base) | find_kind(m, word.opcode)
        with m.If(self.flush):
            m.d.sync += self.ready_valid.eq(0)
        with m.Elif(self.accept):
            m.d.sync += self.ready_valid.eq(advance)
        with m.If(advance):
            out = self.instruction
            m.d.sync += [
                out.op.eq(word.opcode),
                out.d.eq(word.d),
                out.a.eq(a),
                out.b.eq(b),
                *(out[name].eq(value) for name, value in found.items()),
                out.imm.eq(Mux(loop, word.imm[16:].as_signed(), word.imm)),
                out.pc.eq(pc),
                out.fault.eq(fault),
                out.selector.eq(selector),
                *(out[name].eq(decoded[name]) for name in ("scalar", "config", "issue", "sync")),
            ]
        return m

    def _decode(self, m: Module, word: data.View) -> dict[str, Signal]:
        """Return signals by name: the class of the instruction, the selectors that it uses, and `illegal`."""
        names = ("scalar", "config", "issue", "sync", "uses_a", "uses_b", "illegal")
        decoded = {name: Signal(name=name) for name in names}
        illegal_d = {
            MicroOp.SET: ~field_exists(word.d),
            MicroOp.CLEAR: word.d >= len(Unit),
            MicroOp.CALLP: word.d >= self.config.segments,
        }
        with m.Switch(word.opcode):
            for op, form in FORMS.items():
                with m.Case(int(op)):
                    m.d.comb += [
                        decoded["scalar"].eq(int(form.cls == Class.SCALAR)),
                        decoded["config"].eq(int(form.cls == Class.CONFIG)),
                        decoded["issue"].eq(int(form.cls == Class.ISSUE)),
                        decoded["sync"].eq(int(form.cls == Class.SYNC)),
                        decoded["uses_a"].eq(int("a" in form.operands)),
                        decoded["uses_b"].eq(int("b" in form.operands)),
                        decoded["illegal"].eq(illegal_d.get(op, 0)),
                    ]
            with m.Default():
                m.d.comb += decoded["illegal"].eq(1)
        return decoded

    def _buffer(self, m: Module, word: data.View, valid: Value) -> tuple[Value, Value, Signal]:
        """Drive the address of the operand buffer and return the macro operands of an instruction.

        Return the data for a, the data for b, and a signal that is high while the data for b are not yet valid.
        """
        second, waits, pair = Signal(), Signal(), Signal()
        m.d.comb += waits.eq(valid & pair & ~second)
        with m.If(self.take | self.flush):
            m.d.sync += second.eq(0)
        with m.Elif(waits):
            m.d.sync += second.eq(1)
        with m.If(self.take):
            uses_b = self.word.opcode.matches(
                *(int(op) for op, form in FORMS.items() if "b" in form.operands)
            )
            m.d.sync += pair.eq(uses_b & _in_buffer(self.word.a) & _in_buffer(self.word.b))
        first = Mux(_in_buffer(self.word.a), self.word.a, self.word.b)
        a, b = self._read_operands(m, word, valid=valid, pair=pair, waits=waits, first=first)
        return a, b, waits

    def _read_operands(
        self, m: Module, word: data.View, *, valid: Value, pair: Signal, waits: Signal, first: Value
    ) -> tuple[Value, Value]:
        """Drive the address of the operand buffer; return the macro operands that both selectors name.

        Parameters
        ----------
        m : Module
            Module that the logic is added to.
        word : View
            Instruction in this stage.
        valid : Value
            High if this stage contains an instruction.
        pair : Signal
            High if both selectors of this instruction name macro operands.
        waits : Signal
            High in the cycle in which the second operand is being read.
        first : Value
            Selector of the instruction at the input that is read first.
        """
        a_data = enable_register(m, "first_operand", self.operand_data, waits)
        # The address is that for the instruction that enters this stage, or the next address for the instruction that
        # remains in it.
        again = Mux(_in_buffer(word.a) & ~(valid & pair), word.a, word.b)
        m.d.comb += self.operand_addr.eq(Mux(self.take, first, again))
        return Mux(valid & pair, a_data, self.operand_data), self.operand_data

    def _operands(
        self, m: Module, word: data.View, decoded: dict[str, Signal], a_buffered: Value, b_buffered: Value
    ) -> tuple[Signal, Signal, Signal, Signal]:
        """Return, for each selector, its value and a signal that is high if the selector is illegal."""
        m.submodules.registers = registers = RegisterFile()
        m.d.comb += [
            registers.clear.eq(self.clear),
            registers.w_en.eq(self.commit),
            registers.w_addr.eq(self.w_addr),
            registers.w_data.eq(self.w_data),
            registers.a_addr.eq(word.a[:5]),
            registers.b_addr.eq(word.b[:5]),
        ]
        results = []
        for name, selector, stored, buffered in (
            ("a", word.a, registers.a_data, a_buffered),
            ("b", word.b, registers.b_data, b_buffered),
        ):
            used = decoded[f"uses_{name}"]
            value, bad, statistic = (
                Signal(32, name=f"{name}_value"),
                Signal(name=f"{name}_bad"),
                Signal(32, name=f"{name}_statistic"),
            )
            register = Signal(32, name=f"{name}_register")
            forward = self.w_en & (self.w_addr == selector[:5]) & (self.w_addr != 0)
            m.d.comb += register.eq(Mux(forward, self.w_data, stored))
            with m.Switch(selector[:4]):
                for number, source in self._statistics().items():
                    with m.Case(int(number)):
                        m.d.comb += statistic.eq(source)
            with m.If(used):
                with m.If(selector[5:] == 0):
                    m.d.comb += value.eq(register)
                with m.Elif(_in_buffer(selector)):
                    m.d.comb += [
                        value.eq(buffered),
                        bad.eq((selector[:6] >= self.operands) | (selector[:6] >= MAX_OPERANDS)),
                    ]
                with m.Else():
                    m.d.comb += [
                        value.eq(statistic),
                        bad.eq((selector < STATISTIC_BASE) | (selector >= STATISTIC_BASE + len(Statistic))),
                    ]
            results += [value, bad]
        return results[0], results[1], results[2], results[3]

    def _statistics(self) -> dict[Statistic, Value | int]:
        return {
            Statistic.FUSE_ROWS: self.statistics.fuse_rows,
            Statistic.FUSE_ZEROS: self.statistics.fuse_zeros,
            Statistic.FUSE_MIN: self.statistics.fuse_min,
            Statistic.FUSE_MAX: self.statistics.fuse_max,
            Statistic.MATRIX_ZEROS: self.statistics.matrix_zeros,
            Statistic.N: self.config.n,
            Statistic.OPERANDS: self.operands,
            Statistic.TAG: self.tag,
            Statistic.CYCLE: self.statistics.cycle,
        }


class PipelinedDecode(Decode):
    """`Decode` that reads the first macro operand one cycle earlier and registers the data from the memory.

    Latency, throughput and members are the same as for `Decode`, but an instruction must be at the input from the cycle
    before `valid` on.
    """

    def _read_operands(
        self, m: Module, word: data.View, *, valid: Value, pair: Signal, waits: Signal, first: Value
    ) -> tuple[Value, Value]:
        m.d.comb += self.operand_addr.eq(Mux(self.take, self.word.b, first))
        a_data = enable_register(m, "first_operand", self.operand_data, self.take)
        b_data = enable_register(m, "second_operand", self.operand_data, waits)
        return a_data, Mux(pair, b_data, a_data)


def _in_buffer(selector: Value) -> Value:
    return selector[6:] == OPERAND_BASE >> 6
