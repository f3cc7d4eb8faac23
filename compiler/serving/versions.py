"""Versions of a network in the DRAM of one machine, allocated first-fit and proved safe before they are run."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256

from compiler.cache.content_store import ContentStore
from compiler.codegen.split_programs import ProgramPart
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.stages import Stage
from compiler.runtime.validation import prove
from compiler.validate import MacroCall
from cosim.driver import Driver
from cosim.semantics.command_checks import DramWindow
from hw.errors import InputError

#: AXI page size in bytes: bursts do not cross pages, so the offset in a page decides how transfers are split.
PAGE = 4096


class FirstFitAllocator:
    """Allocates blocks of an address range at the lowest address that fits; blocks can be freed in any order.

    Parameters
    ----------
    start, size : int
        First address and size of the range in bytes.
    align : int
        Minimum alignment of all blocks in bytes.
    """

    def __init__(self, start: int, size: int, align: int = 64):
        self.align, self.start = align, -(-start // align) * align
        self.stop = start + size
        self._allocated: dict[int, int] = {}

    def alloc(self, size: int, name: str, align: int = 1) -> int:
        """Allocate `size` bytes aligned to `align`, and return the address.

        Raises
        ------
        InputError
            No free block is large enough.
        """
        align = max(align, self.align)
        address = -(-self.start // align) * align
        for start, length in sorted(self._allocated.items()):
            if start - address >= size:
                break
            address = max(address, -(-(start + length) // align) * align)
        if address + size > self.stop:
            raise InputError(
                f"no room for {size} bytes of {name}: {self.left} of {self.stop - self.start} bytes are free"
            )
        self._allocated[address] = max(size, 1)
        return address

    def free(self, address: int) -> None:
        """Free the block at an address."""
        del self._allocated[address]

    @property
    def left(self) -> int:
        """Total free bytes, contiguous or not."""
        return self.stop - self.start - sum(self._allocated.values())


_DIGITS = 8
_READ, _READ_WRITE = 1, 3
#: Number of DRAM windows of one stage: the requests' buffers, the stage's weights, the rest of its memory.
_STAGE_WINDOWS = 3


@dataclass(frozen=True, eq=False)
class Version:
    """Network loaded into a machine's DRAM.

    Parameters
    ----------
    number : int
        Number of the version, from 0.
    network : CompiledNetwork
        Compiled network of the version.
    bases : tuple of int
        DRAM address of the memory of each accelerator stage.
    window : tuple of int
        First and last address of the version's memory.
    lengths : set of int
        Lengths of inputs for which the version was proved safe, if it has programs for several lengths.
    """

    number: int
    network: CompiledNetwork
    bases: tuple[int, ...]
    window: tuple[int, int]
    lengths: set[int] = field(default_factory=set)

    @cached_property
    def parts(self) -> tuple[ProgramPart, ...]:
        """Programs of all stages."""
        return tuple(part for code in self.network.codes for part in code.parts)

    @cached_property
    def digests(self) -> tuple[str, ...]:
        """Digests of the programs' contents, for reports."""
        programs = (program for part in self.parts for program in part.programs)
        return tuple(sha256(program.image).hexdigest()[:_DIGITS] for program in programs)


class Buffers:
    """Input and output buffers, one set per request slot.

    Parameters
    ----------
    arena : FirstFitAllocator
        Allocator of the DRAM.
    network : CompiledNetwork
        Network that defines the inputs and outputs, which are the same for all versions.
    slots : int
        Number of concurrent requests.
    """

    def __init__(self, arena: FirstFitAllocator, network: CompiledNetwork, slots: int):
        self.shape = _shape(network)
        sizes = [tensor.bytes for stage in coded(network) for tensor in (*stage.inputs, *stage.outputs)]
        pitch = sum(-(-size // arena.align) * arena.align for size in sizes)
        start = arena.alloc(slots * max(pitch, 1), "requests' inputs and outputs")
        self.window = (start, start + slots * max(pitch, 1) - 1, _READ_WRITE)
        self._operands: list[list[list[int]]] = []
        for slot in range(slots):
            address, stages = start + slot * pitch, []
            for stage in coded(network):
                addresses = []
                for tensor in (*stage.inputs, *stage.outputs):
                    addresses.append(address)
                    address += -(-tensor.bytes // arena.align) * arena.align
                stages.append(addresses)
            self._operands.append(stages)

    @property
    def slots(self) -> int:
        """Number of request slots."""
        return len(self._operands)

    def operands(self, version: Version, stage: int, slot: int) -> list[int]:
        """Return the addresses that are the first operands of the macro-instructions of a stage."""
        return [version.bases[stage], *self._operands[slot][stage]]


def coded(network: CompiledNetwork) -> list[Stage]:
    """Return all accelerator stages of a network, including stages in subgraphs."""
    return [stage for stage in network.walk() if stage.code]


def _shape(network: CompiledNetwork) -> list[tuple[object, ...]]:
    """Return the names, shapes and types of stage inputs and outputs, which are equal in all versions."""
    return [
        tuple((tensor.name, tensor.shape, tensor.dtype) for tensor in (*stage.inputs, *stage.outputs))
        for stage in coded(network)
    ]


def _every_pair(slots: int) -> list[int]:
    """Return a sequence of slots in which every ordered pair of slots is adjacent; it starts and ends with slot 0.

    A request uses any free slot, so any slot may follow any other. This is the de Bruijn sequence of order 2.
    """
    order = [0]
    for first in range(slots):
        order += [first] if first else []
        for second in range(first + 1, slots):
            order += [first, second]
    return [*order, 0]


class Versions:
    """Allocates versions in DRAM and proves them safe at these addresses.

    Parameters
    ----------
    driver : Driver
        Driver of the serving machine.
    arena : FirstFitAllocator
        Allocator of the DRAM.
    buffers : Buffers
        Input and output buffers of the requests.
    proofs : ContentStore or None
        Cache of safety proofs.
    """

    def __init__(
        self, driver: Driver, arena: FirstFitAllocator, buffers: Buffers, proofs: ContentStore | None = None
    ):
        self.driver, self.arena, self.buffers, self.proofs = driver, arena, buffers, proofs
        self._count = 0
        self._loaded: list[Version] = []

    def add(self, network: CompiledNetwork, neighbour: Version | None = None) -> Version:
        """Load a version into DRAM and prove it safe, including transitions to and from the version `neighbour`.

        Raises
        ------
        InputError
            The version belongs to another model or machine, or does not fit into DRAM.
        ValidationError
            A program could not be proved safe: it might access other memory, interfere with its neighbours, hang or
            trap.
        """
        config = self.driver.config
        if network.config != config:
            raise InputError(f"{network.name}: this version was compiled for another machine configuration")
        if _shape(network) != self.buffers.shape:
            raise InputError(
                f"{network.name}: this version has different stages, so it belongs to another model"
            )
        version = self._load(network)
        self._count += 1
        try:
            self._prove([version])
            if neighbour is not None:
                self._prove([version, neighbour])
        except BaseException:
            self.drop(version)
            raise
        return version

    def drop(self, version: Version) -> None:
        """Free the memory of an unused version."""
        self.arena.free(version.window[0])
        self._loaded.remove(version)

    def restore(self) -> None:
        """Restore the initial contents of memory that programs change; an interrupted program may have damaged them."""
        for version in self._loaded:
            for base, code in zip(version.bases, version.network.codes, strict=True):
                if code.mutable:
                    self.driver.put(code.image[code.constants :], base + code.constants)

    def _load(self, network: CompiledNetwork) -> Version:
        offsets, size = [], 0
        for code in network.codes:
            offsets.append(size)
            size += -(-max(code.memory, 1) // self.arena.align) * self.arena.align
        # Page alignment makes the cycles equal to those of the measurement at another address.
        start = self.arena.alloc(size, f"the memory of a version of {network.name}", PAGE)
        for offset, code in zip(offsets, network.codes, strict=True):
            self.driver.put(code.image, start + offset)
        bases = tuple(start + offset for offset in offsets)
        version = Version(self._count, network, bases, (start, start + size - 1))
        self._loaded.append(version)
        return version

    def prove_length(self, version: Version, length: int | None) -> None:
        """Prove a version safe for a length of its inputs unless that was done before; None: its shapes are fixed.

        Requests of a network with several lengths run one at a time, from an idle machine.

        Raises
        ------
        ValidationError
            The program could not be proved safe for this length.
        """
        if length is None or length in version.lengths:
            return
        calls = self._calls(version, 0, 0, version.network.at(length).count(1))
        prove(self.driver.config, calls, self._windows([version], 0), self.proofs)
        version.lengths.add(length)

    def _prove(self, among: Sequence[Version]) -> None:
        """Prove each stage of the first version safe for every slot order and for transitions to other versions."""
        version = among[0]
        for stage in range(len(version.bases)):
            order = [(version, slot) for slot in _every_pair(self.buffers.slots)]
            order += [(each, slot) for each in reversed(among) for slot in (0, self.buffers.slots - 1)]
            order.append((version, 0))
            different = {pair: self._calls(*pair, stage) for pair in dict.fromkeys(order)}
            calls = [call for pair in order for call in different[pair]]
            prove(self.driver.config, calls, self._windows(among, stage), self.proofs)

    def _calls(
        self, version: Version, slot: int, stage: int, count: Sequence[int | None] | None = None
    ) -> list[MacroCall]:
        count = version.network.symbolic_count if count is None else count
        operands = (*self.buffers.operands(version, stage, slot), *count)
        parts = version.network.codes[stage].parts
        return [MacroCall(part.program, operands, instead=part.instead) for part in parts]

    def _windows(self, among: Sequence[Version], stage: int) -> list[DramWindow]:
        """Return the DRAM windows of a stage: the buffers, and the memory of the versions.

        The weights are read-only if there is only one version and the hardware has enough windows. It suffices to prove
        separately for each version that it does not modify its weights, because addresses depend neither on data nor on
        earlier programs.
        """
        if len(among) > 1 or self.driver.config.windows < _STAGE_WINDOWS:
            return [self.buffers.window, *((*each.window, _READ_WRITE) for each in among)]
        version = among[0]
        code, base = version.network.codes[stage], version.bases[stage]
        weights = base + code.constants
        memory = [(base, weights - 1, _READ), (weights, base + code.memory - 1, _READ_WRITE)]
        return [self.buffers.window, *(window for window in memory if window[0] <= window[1])]
