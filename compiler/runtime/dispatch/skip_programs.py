"""Programs for skipping: a probe that counts the elements with a value, and one that writes constants."""

from collections.abc import Sequence

from compiler.ir.tensor import Tensor
from hw.config import MlaConfig
from hw.errors import InputError
from hw.isa.assembler import assemble
from hw.isa.commands import FUSE_DIMS
from hw.isa.program import Program

_REST = "fence load, matrix, fuse, store"


def probe(config: MlaConfig, tensor: Tensor, value: int, place: tuple[int, int], tag: int) -> Program:
    """Program that counts in %fuse_zeros the elements of a tensor in DRAM that have a value.

    It subtracts the value from each element and overwrites one scratchpad row with the differences.

    Parameters
    ----------
    tensor : Tensor
        Of int8 or uint8.
    value : int
        As its type has it.
    place : (int, int)
        Operand with an address in DRAM, and the bytes from there to the tensor.
    tag : int
        Counter tag of the program.

    Raises
    ------
    InputError
        The tensor is too large for the scratchpad.
    """
    n, size = config.n, tensor.bytes
    points = -(-size // n)
    rows = points * n
    if rows + n > config.sp_bytes or points >= 1 << 16:
        raise InputError(
            f"skip: {tensor.name!r} of {size:,} bytes does not fit the scratchpad of {config.sp_bytes:,}"
        )
    kind, dims = "i8" if tensor.dtype == "int8" else "u8", FUSE_DIMS.index("x")
    operand, offset = place
    return assemble(
        f"""
        {_REST}
        tag {tag}
        set load.dram, op{operand}, {offset}
        set load.len, {size}
        issue load, signal(fuse:0)
        set fuse.src, a_src=sp a_dtype={kind}
        set fuse.stage, d_dst=sp d_dtype=i8 tail_dim={dims}
        set fuse.zp_ab, {value & 0xFFFF}
        set fuse.x_count, {points}
        set fuse.a_v, {n}
        set fuse.lanes_tail, {(size - 1) % n + 1}
        set fuse.d_base, {rows}
        issue fuse, wait(load:0)
        fence fuse
        halt
    """,
        f"probe {tensor.name}",
    )


def constants(
    config: MlaConfig, name: str, start: int, sizes: Sequence[tuple[int, int]], tag: int
) -> Program:
    """A program that copies constants from the model's memory to DRAM.

    Parameters
    ----------
    name : str
        Of the program.
    start : int
        Offset of the consecutive constants in the model's memory in bytes.
    sizes : sequence of (int, int)
        For each constant, the operand with its destination address, and its size in bytes.
    tag : int
        Counter tag of the program.

    Raises
    ------
    InputError
        The constants do not fit the scratchpad together.
    """
    total = sum(size for _, size in sizes)
    if total > config.sp_bytes:
        raise InputError(f"skip: {total:,} bytes of results do not fit the scratchpad of {config.sp_bytes:,}")
    lines = [
        _REST,
        f"tag {tag}",
        f"set load.dram, op0, {start}",
        f"set load.len, {total}",
        "issue load, signal(store:0)",
    ]
    at, wait = 0, ", wait(load:0)"
    for operand, size in sizes:
        lines += [f"set store.dram, op{operand}", f"set store.src, {at}", f"set store.len, {size}"]
        lines.append(f"issue store{wait}")
        at, wait = at + size, ""
    return assemble("\n".join([*lines, "halt"]), name)
