"""Tests of the memory use of networks."""

import io
from dataclasses import replace

import numpy as np
import pytest

from compiler.api import compile
from compiler.commands.commands import BufferMemory
from compiler.pipeline import CompilationTrace
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.package_writer import from_bytes, to_bytes
from compiler.runtime.program_text import listing as text_of
from compiler.runtime.program_text import programs_of, with_programs
from compiler.runtime.run_report import dram_use, memory_use
from tests.lowering.test_partition import mixed
from tests.support.control_models import early_exit
from tests.support.float_graphs import BLOCK, IMAGE, WITHIN, numbers, samples
from tests.support.onnx_models import model, read


def recorded(graph, target="n8", **options) -> tuple[CompiledNetwork, CompilationTrace]:
    record = CompilationTrace()
    return compile(graph, target, record=record, **options), record


def peak_of(record: CompilationTrace, memory: BufferMemory) -> int:
    """Return the largest total size of the buffers that are in use at one command."""
    found = 0
    for stream in record.streams:
        uses = [{ring for ring in command.buffers if ring.memory == memory} for command in stream.commands]
        for at in range(len(uses)):
            before, after = (set().union(*part) for part in (uses[: at + 1], uses[at:]))
            found = max(found, sum(ring.total for ring in before & after))
    return found


def block(folder):
    return read(folder, model(BLOCK, {"x": numbers(*IMAGE)}, ["y"], WITHIN))


@pytest.mark.parametrize("target", ["n4", "n8", "n16"])
def test_peaks_equal_the_largest_use_at_a_command(tmp_path, target):
    network, record = recorded(block(tmp_path), target, calibration=samples(IMAGE))
    use, config = memory_use(network), network.config
    # The streams of all trials are recorded, but the programs are those of the last trial.
    record.streams = record.streams[-1:]
    assert use["scratchpad"] == {"peak_bytes": peak_of(record, BufferMemory.SP), "bytes": config.sp_bytes}
    rows = peak_of(record, BufferMemory.ACC)
    assert use["accumulator"] == {"peak_bytes": rows * 4 * config.n, "bytes": config.acc_bytes}
    words = sum(len(program.words) for code in network.codes for program in code.all_programs)
    assert use["instruction_store"] == {"words": words, "available": config.wis_words, "resident": True}


def test_dram_of_stages(tmp_path):
    """Tensors between two accelerator stages, with a host stage in between, count as intermediate."""
    draft, outputs = mixed()
    network = compile(draft.graph.finish([tensor.name for tensor in outputs]), "n8")
    pixels = 5 * 5
    use = dram_use(network)
    assert (use.inputs, use.outputs) == (pixels * 6, pixels * 8)  # the host computes the other output
    crossing = pixels * 8 * 2 + pixels * 8  # the first stage's output, and both inputs of the second stage
    assert use.intermediate == crossing + sum(code.memory - code.image.size for code in network.codes)
    assert use.weights == sum(code.image.size for code in network.codes) >= 3 * 3 * 8 * (6 + 8)
    assert use.total == use.weights + use.inputs + use.outputs + use.intermediate


def test_dram_of_a_quantized_model(tmp_path):
    network = compile(block(tmp_path), "n8", calibration=samples(IMAGE))
    assert dram_use(network).inputs == int(np.prod(IMAGE))  # int8, as the host converts the input
    assert dram_use(network).outputs == 10
    two = compile(block(tmp_path), "n8", calibration=samples(IMAGE), batch=2)
    assert (dram_use(two).inputs, dram_use(two).outputs) == (2 * int(np.prod(IMAGE)), 20)


def test_memory_of_subgraphs(tmp_path):
    graph = read(tmp_path, early_exit(np.random.default_rng(3), threshold=0.3))
    network = compile(graph, "n4")
    assert any(stage.control for stage in network.stages)
    use = memory_use(network)
    assert use["dram"]["weights"] == sum(code.image.size for code in network.codes)
    assert use["scratchpad"]["peak_bytes"] == max(code.peak.sp for code in network.codes if code.peak)


def test_peak_of_several_batch_sizes_is_the_largest(tmp_path):
    graph, given = block(tmp_path), samples(IMAGE)
    each = [
        memory_use(compile(graph, "n8", calibration=given, batches=sizes)) for sizes in ((1,), (4,), (1, 4))
    ]
    peaks = [use["scratchpad"]["peak_bytes"] for use in each]
    assert peaks[2] == max(peaks[:2])


def test_peaks_are_stored_and_unknown_for_changed_programs(tmp_path):
    network = compile(block(tmp_path), "n8", calibration=samples(IMAGE))
    again = from_bytes(io.BytesIO(to_bytes(network)))
    assert memory_use(again) == memory_use(network)
    programs = programs_of(text_of(network), "same.s")
    assert memory_use(with_programs(network, programs)) == memory_use(network)
    edited = [replace(programs[0], words=(*programs[0].words, programs[0].words[-1])), *programs[1:]]
    assert memory_use(with_programs(network, edited))["scratchpad"]["peak_bytes"] is None
