"""Host driver of the machine, used unchanged on the RTL and on the golden model."""

from collections.abc import Sequence

import numpy as np

from cosim import checks
from cosim.allocator import Allocator
from cosim.counters import CounterReader
from cosim.csr import CsrAccess
from cosim.device import Device, DeviceTimeoutError
from cosim.programs import Candidate, ProgramStore
from cosim.status import NO_SEGMENT, Completion, TrapError, TrapReport
from hw.bus.register_map import ID
from hw.errors import InputError, WorkError
from hw.isa.disassembler import instruction
from hw.isa.macro_instruction import HEADER, MAGIC, OPERAND_WORD, RECORD_WORD, RECORD_WORDS, SLOT_BYTES
from hw.isa.micro_instruction import MAX_OPERANDS
from hw.isa.program import Program

_IDLE, _TRAPPED = 1, 2
_IRQ_TRAP = 2
#: Cycles between two polls when no interrupt is expected.
_POLL_CYCLES = 4096
#: Default watchdog limit in cycles per macro-instruction, many times the duration of the longest layer of any network.
WATCHDOG_CYCLES = 1 << 26


class Driver:
    """Driver that initializes a device, loads programs and runs macro-instructions.

    A watchdog trap stops a macro-instruction after WATCHDOG_CYCLES cycles. If another driver has used the device, the
    chip is reset, and the other driver must not be used any more.

    Parameters
    ----------
    device : Device
        Device to drive, either the RTL or the golden model.
    ring_slots : int
        Number of slots of the command ring, a power of two.
    ring : int or None
        Address of the command ring, a multiple of the slot size; `memory` then ends at this address. None to put the
        ring at the start of DRAM, below all allocations of `memory`.

    Attributes
    ----------
    memory : Allocator
        Allocator of DRAM outside the command ring. Programs may not access the ring.
    programs : ProgramStore
        Manager of the instruction store, which loads programs and binds opcodes.
    counters : CounterReader
        Reader of the performance counters.
    """

    def __init__(self, device: Device, ring_slots: int = 64, ring: int | None = None):
        if ring_slots < 1 or ring_slots & (ring_slots - 1) or ring_slots > 1 << 16:
            raise InputError(f"ring_slots must be a power of two up to 65536, not {ring_slots!r}")
        self.device = device
        self.config = device.config
        self.registers = CsrAccess(device)
        ring_bytes = ring_slots * SLOT_BYTES
        if ring is not None and not (ring % SLOT_BYTES == 0 and 0 <= ring <= device.dram.size - ring_bytes):
            raise InputError(
                f"ring must be a multiple of {SLOT_BYTES} in 0..{device.dram.size - ring_bytes:#x}, not {ring!r}"
            )
        self.memory = Allocator(device.dram.size if ring is None else ring)
        self.programs = ProgramStore(self.registers, self.memory)
        self.counters = CounterReader(self.registers)
        self.ring_slots = ring_slots
        self._head = self._tail = self._rung = 0
        if self.get("ID") != ID:
            raise WorkError(f"the device's ID is {self.get('ID'):#x}, not {ID:#x}: it is not an MLA")
        if getattr(device, "user", None) is not None:
            device.reset()
        self._token = device.user = (
            object()
        )  # not the driver itself: a reference cycle would keep the device open
        self._ring = self.memory.alloc(ring_bytes, SLOT_BYTES, "command ring") if ring is None else ring
        self._slots = device.dram[self._ring : self._ring + ring_bytes].view("<u4").reshape(ring_slots, -1)
        self.set("RING_BASE", self._ring)
        self.set("RING_LOG2", ring_slots.bit_length() - 1)
        self.set("IRQ_ENABLE", 15)
        self.set("WATCHDOG", WATCHDOG_CYCLES)
        self.set_window(0, self.memory.used, self.memory.size - self.memory.used)
        self.set("CONTROL", 3)

    def __repr__(self) -> str:
        return f"<Driver of {self.device!r}: {self.ring_slots} ring slots, {len(self.programs.programs)} programs>"

    def get(self, name: str) -> int:
        """Read a register by name."""
        return self.registers.get(name)

    def set(self, name: str, value: int) -> None:
        """Write a register by name."""
        self.registers.set(name, value)

    def set_window(
        self, index: int, address: int, size: int, *, read: bool = True, write: bool = True
    ) -> None:
        """Set a DRAM window, which is a range that programs may access.

        Parameters
        ----------
        index : int
            Index of the window, starting at 0.
        address, size : int
            Address of the first byte, and length in bytes; size 0 closes the window.
        read, write : bool
            True if the window permits reads and writes, respectively.
        """
        if not 0 <= index < self.config.windows:
            raise InputError(f"window must be in 0..{self.config.windows - 1}, not {index!r}")
        self.set(f"WINDOW{index}_PERM", 0)
        if size:
            self.set(f"WINDOW{index}_BASE", address)
            self.set(f"WINDOW{index}_LAST", address + size - 1)
            self.set(f"WINDOW{index}_PERM", read | write << 1)

    def put(self, array: np.ndarray, address: int | None = None, name: str = "buffer") -> int:
        """Copy an array to DRAM and return its address.

        Parameters
        ----------
        array : numpy.ndarray
            Data to copy, of any type and shape.
        address : int or None
            Destination address; None to allocate the destination from `memory`.
        name : str
            Name of the allocated region.
        """
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        address = self.memory.alloc(max(data.size, 1), 64, name) if address is None else address
        self._check_range(address, data.size)
        self.device.dram[address : address + data.size] = data
        return address

    def fetch(self, address: int, shape: Sequence[int], dtype: np.dtype | type = np.int8) -> np.ndarray:
        """Return a copy of the array with the given shape and type at a byte address of DRAM."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self._check_range(address, size)
        return self.device.dram[address : address + size].copy().view(dtype).reshape(shape)

    def _check_range(self, address: int, size: int) -> None:
        if address < 0 or address + size > self.device.dram.size:
            raise InputError(f"{size} bytes at {address:#x} are beyond DRAM of {self.device.dram.size} bytes")

    def load(
        self, program: Program, *, opcode: int | None = None, dma: bool = False, pin: bool = False
    ) -> int:
        """Load a program and return its segment.

        Parameters
        ----------
        program : Program
            Program to load into the first free segment.
        opcode : int or None
            Opcode to bind to this program alone; None to bind no opcode.
        dma : bool
            True to let the chip fetch the words from DRAM; False to write the words through registers.
        pin : bool
            True to make the segment callable from every program.
        """
        segment = self.programs.load(program, dma=dma, pin=pin)
        if opcode is not None:
            self.programs.bind(opcode, [Candidate(segment)])
        return segment

    def enqueue(
        self,
        opcode: int,
        operands: Sequence[int] = (),
        *,
        tag: int = 0,
        irq: bool = False,
        doorbell: bool = False,
    ) -> int:
        """Write a macro-instruction to the ring and return its sequence number.

        The method `run` or `doorbell` starts the macro-instruction.

        Parameters
        ----------
        opcode : int
            Opcode, which must be bound to a program.
        operands : Sequence of int
            Operands of the program, signed or unsigned 32-bit integers.
        tag : int
            Tag under which events are counted.
        irq : bool
            True to raise an interrupt on completion.
        doorbell : bool
            True to start the macro-instruction immediately.

        Raises
        ------
        InputError
            There are too many operands, a value is out of range, or the ring is full.
        """
        if len(operands) > MAX_OPERANDS:
            raise InputError(f"a macro-instruction has at most {MAX_OPERANDS} operands, not {len(operands)}")
        if not 0 <= tag < self.config.tags:
            raise InputError(f"tag must be in 0..{self.config.tags - 1}, not {tag!r}")
        if not 0 <= opcode < 256:
            raise InputError(f"opcode must be in 0..255, not {opcode!r}")
        header = HEADER.pack(opcode=opcode, operands=len(operands), tag=tag, irq=irq, magic=MAGIC)
        return self.enqueue_words([header], operands, doorbell=doorbell)

    def enqueue_words(self, header: Sequence[int], operands: Sequence[int], *, doorbell: bool = False) -> int:
        """Write header words and operands to the next ring slot, like `enqueue` but without checking the header."""
        words = [checks.word(value, f"operand {index}") for index, value in enumerate(operands)]
        if self._head - self._tail >= self.ring_slots:
            self._tail += self.get("RING_TAIL") - self._tail & 0xFFFFFFFF
            if self._head - self._tail >= self.ring_slots:
                raise InputError(
                    f"the command ring of {self.ring_slots} slots is full: run the enqueued macro-instructions first"
                )
        slot = self._slots[self._head % self.ring_slots]
        slot[:] = 0
        slot[: len(header)] = header
        slot[OPERAND_WORD : OPERAND_WORD + len(words)] = words
        self._head += 1
        if doorbell:
            self.doorbell()
        return self._head - 1

    def doorbell(self) -> None:
        """Advance the head of the ring, so that the machine starts all enqueued macro-instructions.

        Raises
        ------
        WorkError
            The device has been reset, or another driver has initialized it.
        """
        if self.device.user is not self._token:
            raise WorkError(
                f"{self.device!r} was reset or used by another driver or session since: make a new one"
            )
        self.set("RING_HEAD", self._head & 0xFFFFFFFF)
        self._rung = self._head

    def run(self, timeout_cycles: int = 100_000_000, *, resume: bool = False) -> list[TrapReport]:
        """Start the enqueued macro-instructions and wait until all have completed.

        Parameters
        ----------
        timeout_cycles : int
            Maximum number of cycles between two completions or traps.
        resume : bool
            True to continue after traps and return all of them; False to raise TrapError at the first trap.

        Raises
        ------
        TrapError
            A program trapped, and `resume` is False.
        DeviceTimeoutError
            No macro-instruction completed within `timeout_cycles`.
        """
        traps: list[TrapReport] = []
        step = timeout_cycles
        if self._rung < self._head:
            self._slots[(self._head - 1) % self.ring_slots, 0] |= HEADER.pack(irq=1)
        else:  # the machine may already have read the last slot, whose completion then raises no interrupt
            step = _POLL_CYCLES
        self.doorbell()
        waited = 0
        while True:
            events = self.get("IRQ_STATUS")
            if events:
                self.set("IRQ_STATUS", events)
                waited = 0
            if events & _IRQ_TRAP:
                report = self.trap()
                if not resume:
                    raise TrapError(report)
                traps.append(report)
                self.resume()
                continue
            if self.get("STATUS") & (_IDLE | _TRAPPED) == _IDLE and not self.get("IRQ_STATUS") & _IRQ_TRAP:
                return traps
            if waited >= timeout_cycles:
                number = self.get("RING_TAIL")
                raise DeviceTimeoutError(
                    f"macro-instruction {number} has not completed within {timeout_cycles} cycles"
                )
            if not self.device.wait_irq(step):
                waited += step

    def completion(self, number: int) -> Completion | None:
        """Return the completion record of a macro-instruction that is still in the ring; None until it completes."""
        if not self._head - self.ring_slots <= number < self._head:
            raise InputError(f"macro-instruction {number} is not in the ring")
        words = self._slots[number % self.ring_slots, RECORD_WORD : RECORD_WORD + RECORD_WORDS]
        return Completion.from_words(words.tolist())

    def trap(self) -> TrapReport:
        """Return the record of the last trap, with the disassembled instruction that trapped."""
        names = ("cause", "pc", "segment", "tag", "macro", "address")
        values = {name: self.get(f"TRAP_{name.upper()}") for name in names}
        program = self.programs.programs.get(values["segment"])
        known = program is not None and values["segment"] != NO_SEGMENT and values["pc"] < len(program.words)
        text = instruction(program.words[values["pc"]]) if program and known else ""
        return TrapReport(**values, instruction=text)

    def resume(self) -> None:
        """Let the machine continue after a trap."""
        self.set("RESUME", 1)
