"""The register map of the AXI4-Lite slave: plain tables that the RTL, the driver and the documentation share."""

from dataclasses import dataclass

ID = 0x4D4C4131


@dataclass(frozen=True)
class Register:
    """A 32-bit register of the AXI4-Lite slave.

    Parameters
    ----------
    name : str
        Name of the register.
    address : int
        Byte address of the register.
    access : str
        Access mode. `ro`: read only; `rw`: read and write; `wo`: a write starts an action and reads return 0; `w1c`:
        writing 1 to a bit clears the bit.
    doc : str
        Description in one line for the reference page.
    """

    name: str
    address: int
    access: str
    doc: str


def _bank(base: int, rows: tuple[tuple[str, str, str], ...]) -> tuple[Register, ...]:
    return tuple(Register(name, base + 4 * i, access, doc) for i, (name, access, doc) in enumerate(rows))


#: MlaConfig fields that can be read back; the register of field `n` is CONFIG_N, and so on.
CONFIG_FIELDS = (
    "n",
    "sp_bytes",
    "acc_bytes",
    "sp_banks",
    "acc_banks",
    "wis_words",
    "segments",
    "opcodes",
    "candidates",
    "queue_depth",
    "param_slots",
    "table_slots",
    "line_depth",
    "fuse_rate",
    "tags",
    "loop_depth",
    "call_depth",
    "max_burst",
    "windows",
)
WINDOW_BASE = 0x180
WINDOW_STRIDE = 16

REGISTERS: tuple[Register, ...] = (
    *_bank(0x000, (("ID", "ro", "0x4D4C4131"), ("ISA_VERSION", "ro", "version of the encodings, 1"))),
    *_bank(0x010, tuple((f"CONFIG_{f.upper()}", "ro", f"MlaConfig.{f}") for f in CONFIG_FIELDS)),
    *_bank(
        0x080,
        (
            (
                "CONTROL",
                "rw",
                "bit 0: the sequencer may start macro-instructions; "
                "bit 1: cycles are counted only while a macro-instruction is in flight",
            ),
            ("RESUME", "wo", "1: continue after a trap"),
            (
                "STATUS",
                "ro",
                "bit 0 idle (ring empty, all complete, no trap under way), 1 trapped, 2 program running, "
                "3 loader busy, 4 dispatch copy busy",
            ),
            (
                "IRQ_STATUS",
                "w1c",
                "bit 0 completion with irq set, 1 trap, 2 segment check finished, 3 loader error",
            ),
            ("IRQ_ENABLE", "rw", "mask of IRQ_STATUS for the irq pin"),
            ("RING_BASE", "rw", "DRAM byte address of the ring, a multiple of 256"),
            ("RING_LOG2", "rw", "log2 of the number of slots, 0..16"),
            ("RING_HEAD", "rw", "doorbell: number of macro-instructions enqueued since reset, modulo 2**32"),
            ("RING_TAIL", "ro", "number of macro-instructions completed since reset, modulo 2**32"),
            (
                "STEP_LIMIT",
                "rw",
                "maximum number of micro-instructions of one macro-instruction; 0: no limit",
            ),
            (
                "WATCHDOG",
                "rw",
                "number of cycles without a completion after which work in flight is stopped; 0: off",
            ),
            ("CYCLE_LO", "ro", "cycle counter; reading latches CYCLE_HI"),
            ("CYCLE_HI", "ro", "high half of the cycle counter"),
        ),
    ),
    *_bank(
        0x0C0,
        (
            ("TRAP_CAUSE", "ro", "cause of the last trap (hw.isa.enums.Trap)"),
            ("TRAP_PC", "ro", "word address within the segment"),
            ("TRAP_SEGMENT", "ro", "number of the segment; 0xFF: none"),
            ("TRAP_TAG", "ro", "tag"),
            ("TRAP_MACRO", "ro", "number of the macro-instruction since reset"),
            ("TRAP_ADDRESS", "ro", "offending address, field value or software trap number"),
            ("TRAP_COUNT", "ro", "traps since reset"),
        ),
    ),
    *_bank(
        0x100,
        (
            ("SEG_SELECT", "rw", "segment that the SEG registers act on"),
            ("SEG_BASE", "rw", "first word of the segment in the instruction store, used by open"),
            ("SEG_LENGTH", "rw", "length of the segment in words, used by open"),
            ("SEG_CRC", "rw", "expected CRC-32, used by check"),
            ("SEG_COMMAND", "wo", "1 open, 2 check (lock, read back, compare), 3 free, 4 pin"),
            (
                "SEG_STATUS",
                "ro",
                "of the selected segment: state in bits 2..0, pinned in bit 3, in use in bit 4",
            ),
            ("WIS_ADDRESS", "rw", "address of the next word to write"),
            ("WIS_DATA_LO", "rw", "low half of the word to write"),
            ("WIS_DATA_HI", "wo", "high half of the word; a write stores the word and advances WIS_ADDRESS"),
            (
                "LOADER_SOURCE",
                "rw",
                "DRAM byte address (a multiple of 64) of an image for the selected segment",
            ),
            (
                "LOADER_COMMAND",
                "wo",
                "1: read SEG_LENGTH words from LOADER_SOURCE into the open segment, then check it",
            ),
            (
                "LOADER_ERROR",
                "ro",
                "last error: 0 none, 1 in use, 2 bad range, 3 not open, 4 CRC mismatch, 5 bus error, 6 overlap",
            ),
        ),
    ),
    *_bank(
        0x140,
        (
            ("DISPATCH_INDEX", "rw", "opcode * candidates + candidate"),
            ("DISPATCH_WORD", "rw", "hw.isa.macro_instruction.CANDIDATE"),
            ("DISPATCH_VALUE", "wo", "value of the guard; a write stores the entry in the shadow table"),
            ("DISPATCH_COMMIT", "wo", "1: make the shadow table live, between two dispatches"),
        ),
    ),
    *_bank(
        0x160,
        (
            ("COUNTER_SELECT", "rw", "counter number in bits 15..0, tag in bits 31..16"),
            ("COUNTER_LO", "ro", "selected counter; reading latches COUNTER_HI"),
            ("COUNTER_HI", "ro", "high half"),
            ("MAXIMUM_SELECT", "rw", "number of the selected maximum"),
            ("MAXIMUM", "ro", "selected maximum"),
        ),
    ),
    *(
        register
        for w in range(8)
        for register in _bank(
            WINDOW_BASE + w * WINDOW_STRIDE,
            (
                (f"WINDOW{w}_BASE", "rw", "first DRAM byte of the window"),
                (f"WINDOW{w}_LAST", "rw", "last DRAM byte of the window"),
                (f"WINDOW{w}_PERM", "rw", "permissions: bit 0 read, bit 1 write"),
            ),
        )
    ),
)

ADDRESS = {register.name: register.address for register in REGISTERS}
