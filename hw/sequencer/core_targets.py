"""Where an instruction may lead, found a stage before it executes."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data

from hw.isa.micro import MicroOp
from hw.sequencer.core_layouts import COUNTER_BITS, OUT_BIT
from hw.sequencer.layouts import PC_BITS

#: Instructions that may take more than a cycle, always go elsewhere or trap.
NOT_PLAIN = (
    MicroOp.MUL,
    MicroOp.TAG,
    MicroOp.WAIT,
    MicroOp.FENCE,
    MicroOp.ISSUE,
    MicroOp.LOOP,
    MicroOp.BREAK,
    MicroOp.CALL,
    MicroOp.CALLP,
    MicroOp.RET,
    MicroOp.TRAP,
)


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
