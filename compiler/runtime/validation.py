"""Validation of compiled networks, and a persistent cache of proofs of their streams of macro-instructions.

`validate_network` validates every stage on the accelerator, with the operands that a session passes. `prove` does not
validate again a stream that the same validator has proved safe. An entry of the cache only records that a stream
passed. Its key is a digest of everything that the proof depends on: the words of the programs, operands, windows, the
hardware configuration, and the sources of the validator.
"""

import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from compiler.cache.content_store import ContentStore
from compiler.cache.digest import name, version
from compiler.codegen.executable import StageExecutable
from compiler.runtime.stages import Stage
from compiler.validate.errors import ProofReport, ValidationError
from compiler.validate.explore import validate
from compiler.validate.macro_call import MacroCall
from cosim.semantics.command_checks import DramWindow
from hw.config import MlaConfig

if TYPE_CHECKING:
    from compiler.runtime.compiled import CompiledNetwork

#: Assumed address of the model's memory; the result does not depend on it.
_BASE, _ALIGN = 1 << 16, 64
_READ, _BOTH = 1, 3
_PROOF = "proof"
_PASSED = b"passed"


def prove(
    config: MlaConfig,
    calls: Sequence[MacroCall],
    windows: Sequence[DramWindow],
    store: ContentStore | None = None,
) -> None:
    """Prove a stream of macro-instructions safe, unless the store records an earlier proof.

    Raises
    ------
    ValidationError
        The stream is not safe.
    """
    if store is None:
        validate(config, calls, windows)
        return
    programs = {id(program): program for call in calls for program in call.programs}
    numbers = {each: number for number, each in enumerate(programs)}
    stream = [
        (
            [numbers[id(each)] for each in call.programs],
            [variant.guard for variant in call.instead],
            call.operands,
            call.tag,
        )
        for call in calls
    ]
    try:
        images = [program.image for program in programs.values()]
    except struct.error:  # a word is out of range; the validator reports its position
        validate(config, calls, windows)
        raise
    key = name(version(), asdict(config), images, stream, windows)
    known = store.get(_PROOF, key)
    if known is None or bytes(known) != _PASSED:
        validate(config, calls, windows)
        store.put(_PROOF, key, _PASSED)


@dataclass(frozen=True)
class StageCalls:
    """Macro-instructions and DRAM windows of a stage.

    Parameters
    ----------
    calls : list of MacroCall
        Calls for all samples in order.
    windows : list of DramWindow
        Window for the read-only weights, then a window for all other memory.
    """

    calls: list[MacroCall]
    windows: list[DramWindow]


def validate_network(
    network: "CompiledNetwork", *, samples: int = 1, require_written: bool = False
) -> dict[int, ProofReport]:
    """Prove stage by stage that a compiled network is safe and does not depend on timing.

    A network with programs for several lengths is proved for each of them.

    Parameters
    ----------
    network : CompiledNetwork
        Network to validate, compiled or read from a file.
    samples : int
        Number of samples enqueued back to back.
    require_written : bool
        Also reject reads of on-chip memory that was not written before, as in `validate`.

    Returns
    -------
    dict
        Report of each stage on the accelerator by stage index, for the longest length if there are several; stages of
        control-flow subgraphs are numbered after the stage that contains them.

    Raises
    ------
    ValidationError
        A program is unsafe or cannot be proved safe.
    """
    reports = {}
    lengths = network.lengths
    sized = [network] if lengths is None else [network.at(length) for length in lengths.values]
    for each in sized:
        for index, stage in enumerate(network.walk()):  # addresses are those of the longest length
            if stage.code:
                work = stage_calls(each, stage, stage.code, samples)
                try:
                    reports[index] = validate(
                        network.config, work.calls, work.windows, require_written=require_written
                    )
                except ValidationError as error:
                    error.stage = index
                    raise
    return reports


def stage_calls(
    network: "CompiledNetwork", stage: Stage, code: StageExecutable, samples: int = 1
) -> StageCalls:
    """Return the macro-instructions that a session enqueues for a stage, and its DRAM windows."""
    weights = _BASE + code.constants
    at = _aligned(_BASE + max(code.memory, 1))
    calls: list[MacroCall] = []
    for _ in range(samples):
        operands: list[int | None] = [_BASE]
        for tensor in (*stage.inputs, *stage.outputs):
            operands.append(at)
            at = _aligned(at + tensor.bytes)
        operands += network.symbolic_count
        calls += [MacroCall(part.program, tuple(operands), instead=part.instead) for part in code.parts]
    windows = [(_BASE, weights - 1, _READ)] if weights > _BASE else []
    return StageCalls(calls, [*windows, (weights, at - 1, _BOTH)])


def _aligned(address: int) -> int:
    return -(-address // _ALIGN) * _ALIGN
