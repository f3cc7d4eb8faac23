"""`mla exec`: validates a micro-program, runs it as one macro-instruction and dumps DRAM."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from compiler.cli.exit_status import targets_status
from compiler.cli.options import (
    add_clock,
    add_json,
    add_memory,
    add_performance_targets,
    add_seed,
    add_target,
    check_files,
    performance_targets,
)
from compiler.cli.programs import add_call, number, read_program, span
from compiler.util.files import report, write_report
from hw.errors import InputError, WorkError, shown

if TYPE_CHECKING:
    import numpy as np

    from cosim.device import Device
    from cosim.driver import Driver
    from cosim.status import TrapReport
    from hw.config import MlaConfig
    from hw.isa.program import Program

SUMMARY = "prove a micro-program safe and run it once"
EXAMPLE = (
    "mla exec copy.s --operands 0x1000,0x2000 --window 0x1000:64:r --window 0x2000:64:w --put 0x1000=x.npy "
    "--dump 0x2000:64"
)

_TRAPPED = 1
_DRAM_BYTES = 1 << 26
#: Size in bytes of the command ring, which follows the DRAM that programs can use.
_RING_SLOTS, _RING_BYTES = 1, 4096
#: NumPy names of the types that the chip computes with; FUSE reads float32 as bit patterns.
_DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "float32")
_OPCODE = 0
POLL_CYCLES = 1 << 20
_LINE_BYTES = 16


class _Put(NamedTuple):
    """Array file to copy to DRAM before the run, and its address."""

    address: int
    path: Path


class _Dump(NamedTuple):
    """Bytes of DRAM to show after the run; `name` is the address as the user wrote it."""

    name: str
    address: int
    size: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command-line options of the verb."""
    parser.add_argument(
        "program", metavar="FILE.s", type=Path, help="assembly text, or an output file of mla asm"
    )
    add_call(parser)
    parser.add_argument(
        "--put",
        metavar="ADDR=FILE.npy",
        type=_put,
        action="append",
        default=[],
        help=f"copy this array to DRAM first, as C-order little-endian bytes; dtype {', '.join(_DTYPES)} (repeatable)",
    )
    parser.add_argument(
        "--dump",
        metavar="ADDR:LENGTH",
        type=_dump,
        action="append",
        default=[],
        help="show LENGTH bytes of DRAM at ADDR after the run (repeatable)",
    )
    parser.add_argument(
        "--device", choices=("rtl", "golden"), default="rtl", help="device to run on (default: %(default)s)"
    )
    add_clock(parser, "clock frequency, for targets that are times or rates")
    add_performance_targets(parser)
    add_target(parser)
    add_memory(parser)
    add_seed(parser)
    add_json(parser)


def _put(text: str) -> _Put:
    address, separator, path = text.partition("=")
    if not separator or not path:
        raise argparse.ArgumentTypeError(f"must be ADDR=FILE.npy, not {shown(text)}")
    return _Put(number(address), Path(path))


def _dump(text: str) -> _Dump:
    if text.count(":") != 1:
        raise argparse.ArgumentTypeError(f"must be ADDR:LENGTH, not {shown(text)}")
    return _Dump(text.partition(":")[0].strip(), *span(text))


def run(args: argparse.Namespace) -> int:
    """Validate and run the program, and print the report.

    The status is 1 if the program is rejected, traps or misses a target.
    """
    from compiler.options import target_lines
    from cosim.driver import Driver
    from hw.config import load_target

    check_files(args)
    goals = performance_targets(args)
    config, program = load_target(args.target), read_program(args.program)
    arrays = _arrays(args)
    _check_ranges(args, arrays)
    _validate(args, config, program)
    with _open(args, config) as device:
        driver = Driver(device, _RING_SLOTS, _DRAM_BYTES)
        for index in range(config.windows):
            driver.set_window(index, 0, 0)
        for index, (first, last, permissions) in enumerate(args.window):
            driver.set_window(
                index, first, last - first + 1, read=bool(permissions & 1), write=bool(permissions & 2)
            )
        for put, array in zip(args.put, arrays, strict=True):
            driver.put(array, put.address)
        cycles, trap = _execute(driver, program, args.operands)
        dumps = {each.name: driver.fetch(each.address, [each.size]).tobytes() for each in args.dump}
    measured = cycles if args.device == "rtl" else None
    judged = goals.judged(measured, None, None)
    document = _head(args, program) | {
        "cycles": measured,
        "trap": None if trap is None else _trap_document(trap, program),
        "dumps": {name: data.hex() for name, data in dumps.items()},
        "performance_targets": judged,
    }
    text = _text(document, [(each, dumps[each.name]) for each in args.dump])
    report(document, "\n".join([text, *target_lines(judged)]), args.json)
    return targets_status(judged) if trap is None else _TRAPPED


def _head(args: argparse.Namespace, program: "Program") -> dict[str, Any]:
    """Return the fields that reports of accepted and rejected programs begin with."""
    return {"program": program.name, "target": Path(args.target).stem, "device": args.device}


def _arrays(args: argparse.Namespace) -> "list[np.ndarray]":
    """Read the arrays of `--put` as little-endian; raise InputError for an unreadable file or an unsupported dtype."""
    from compiler.cli.inputs import read_array

    arrays = []
    for put in args.put:
        array = read_array(put.path)
        if array.dtype.name not in _DTYPES:
            raise InputError(f"{put.path}: dtype must be one of {', '.join(_DTYPES)}, not {array.dtype}")
        if not array.size:
            raise InputError(f"{put.path}: must hold at least one element, its shape is {array.shape}")
        arrays.append(array.astype(array.dtype.newbyteorder("<")))
    return arrays


def _check_ranges(args: argparse.Namespace, arrays: "list[np.ndarray]") -> None:
    """Raise InputError if a range is outside DRAM, arrays overlap, or an address is dumped twice."""
    windows = [
        (f"--window {first:#x}:{last - first + 1}", first, last - first + 1) for first, last, _ in args.window
    ]
    puts = [
        (f"--put {put.address:#x}={put.path}", put.address, array.nbytes)
        for put, array in zip(args.put, arrays, strict=True)
    ]
    dumps = [(f"--dump {each.name}:{each.size}", each.address, each.size) for each in args.dump]
    for name, address, size in (*windows, *puts, *dumps):
        if address < 0 or address + size > _DRAM_BYTES:
            raise InputError(f"{name} is outside DRAM, which is 0..{_DRAM_BYTES - 1:#x}")
    for index, (name, address, size) in enumerate(puts):
        for other, start, length in puts[:index]:
            if address < start + length and start < address + size:
                raise InputError(f"{name} overlaps {other}, {start:#x}..{start + length - 1:#x}")
    names = [each.name for each in args.dump]
    for name in names:
        if names.count(name) > 1:
            raise InputError(
                f"--dump {name}: the address is given twice: give it once, with the larger length"
            )


def _validate(args: argparse.Namespace, config: "MlaConfig", program: "Program") -> None:
    """Prove the program safe, or raise WorkError with the line of the first unsafe instruction."""
    from compiler.cli.programs import in_program
    from compiler.validate import MacroCall, ValidationError, validate

    try:
        validate(config, [MacroCall(program, args.operands)], args.window)
    except ValidationError as error:
        if args.json:
            rejected = {"cycles": None, "trap": None, "dumps": {}, "refusal": error.to_json()}
            write_report(_head(args, program) | rejected, args.json)
        where = in_program(error, [program], [args.program])
        raise WorkError(f"rejected: {where}: {error.kind}: {error.reason}") from None


def _open(args: argparse.Namespace, config: "MlaConfig") -> "Device":
    if args.device == "golden":
        from cosim.golden import GoldenDevice

        return GoldenDevice(config, _DRAM_BYTES + _RING_BYTES)
    from compiler.util.progress import building, log
    from cosim.rtl.rtl_device import RtlDevice

    log("opening the simulated chip")
    return RtlDevice(
        config,
        _DRAM_BYTES + _RING_BYTES,
        latency=args.dram_latency,
        bytes_per_cycle=args.dram_bytes_per_cycle,
        throttle=args.throttle,
        seed=args.seed,
        monitor=building,
    )


def _execute(
    driver: "Driver", program: "Program", operands: tuple[int, ...]
) -> "tuple[int, TrapReport | None]":
    """Run a program once, and return the cycles from doorbell to interrupt, and the trap if one occurred."""
    from cosim.status import TrapError

    driver.load(program, opcode=_OPCODE)
    # Wait until the chip has cleared its counters after reset, so that this is not timed.
    driver.counters.read("cycles", 0)
    driver.enqueue(_OPCODE, operands, irq=True)
    driver.set("IRQ_STATUS", driver.get("IRQ_STATUS"))
    start = driver.device.cycle
    driver.doorbell()
    while not driver.device.wait_irq(POLL_CYCLES):
        pass  # the wait ends, since the watchdog raises the interrupt
    cycles = driver.device.cycle - start
    try:
        driver.run()
    except TrapError as error:
        return cycles, error.report
    return cycles, None


def _trap_document(trap: "TrapReport", program: "Program") -> dict[str, Any]:
    from cosim.status import NO_SEGMENT, trap_name

    inside = trap.segment != NO_SEGMENT and trap.pc < len(program.words)
    return {
        "cause": trap_name(trap.cause),
        "instruction": trap.instruction or None,
        "index": trap.pc if inside else None,
        "line": program.lines[trap.pc] if inside and program.lines else None,
        "address": trap.address,
    }


def _text(document: dict[str, Any], dumps: list[tuple[_Dump, bytes]]) -> str:
    if document["cycles"] is not None:
        outcome = f"{document['cycles']:,} cycles"
    else:
        outcome = "completed" if document["trap"] is None else "trapped"
    lines = [f"{document['program']} on {document['target']} ({document['device']}): {outcome}"]
    if trap := document["trap"]:
        line = "" if trap["line"] is None else f"line {trap['line']}: "
        instruction = f"`{trap['instruction']}`, " if trap["instruction"] else ""
        lines.append(f"trap: {trap['cause']}: {line}{instruction}address or value {trap['address']:#x}")
    for dump, data in dumps:
        lines += [f"{dump.name}, {dump.size:,} bytes:", *hexdump(dump.address, data)]
    return "\n".join(lines)


def hexdump(address: int, data: bytes) -> Iterator[str]:
    """Yield lines in the format of `hexdump -C`: 16 bytes per line, with repeated lines collapsed to `*`.

    Parameters
    ----------
    address : int
        Address of the first byte.
    data : bytes
        Bytes to format.
    """
    previous, collapsed = b"", False
    last = (len(data) - 1) // _LINE_BYTES * _LINE_BYTES
    for offset in range(0, len(data), _LINE_BYTES):
        line = data[offset : offset + _LINE_BYTES]
        if line == previous and offset != last:
            if not collapsed:
                yield "*"
            collapsed = True
            continue
        previous, collapsed = line, False
        octets = " ".join(f"{byte:02x}" for byte in line[:8]), " ".join(f"{byte:02x}" for byte in line[8:])
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in line)
        yield f"{address + offset:08x}  {octets[0]:<23}  {octets[1]:<23}  |{text}|"
