"""What kind of instruction it is and where it may lead, found a stage before it executes."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data

from hw.isa.micro_instruction import MicroOp
from hw.sequencer.layouts import PC_BITS
from hw.sequencer.stage_layouts import COUNTER_BITS, OUT_BIT, PLAIN, Kind

_BRANCHES = (MicroOp.BEQ, MicroOp.BNE, MicroOp.BLT, MicroOp.BGE, MicroOp.BLTU, MicroOp.BGEU)


def find_kind(m: Module, opcode: Value) -> dict[str, Signal]:
    """The kind of an instruction; as `find_targets`."""
    kind, plain = Signal(Kind.RET.bit_length(), name="kind"), Signal(name="plain")
    with m.Switch(opcode):
        with m.Case(*map(int, _BRANCHES)):
            m.d.comb += kind.eq(Kind.BRANCH)
        for name in (kind.name for kind in Kind if kind not in (Kind.SCALAR, Kind.BRANCH)):
            with m.Case(int(MicroOp[name])):
                m.d.comb += kind.eq(Kind[name])
    with m.Switch(kind), m.Case(*map(int, PLAIN)):
        m.d.comb += plain.eq(1)
    return {"kind": kind, "plain": plain}


def find_targets(m: Module, word: data.View, pc: Value, base: Value) -> dict[str, Signal]:
    """The program counters that EXECUTE_LAYOUT holds, so that nothing the execute stage decides comes before an
    adder.

    Parameters
    ----------
    m : Module
        Where the logic goes.
    word : View
        Instruction.
    pc : Value
        Its address, COUNTER_BITS wide.
    base : Value
        First word of its segment.

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
