"""Execution of samples on a compiled network, and reports of results and memory use."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from compiler.cache.content_store import ContentStore
from compiler.codegen.buffer_allocation import joint_peak
from compiler.codegen.split_programs import batches
from compiler.cost.energy import at_clock, energy_parts_uj, energy_uj
from compiler.cost.roofline import Floor, bus_rate
from compiler.ir.identity import stored
from compiler.ir.tensor import Tensor
from compiler.profile.counters import COUNTED, ByTag, CycleSplit, bound, growth, read_counts, split
from compiler.runtime.compiled import CompiledNetwork, split_batch, stack_batch
from compiler.runtime.session import Session
from compiler.runtime.stages import LayerInfo, Origin, ProgramSource, Stage
from compiler.util.progress import progress
from cosim.device import Device
from cosim.golden import GoldenDevice
from hw.errors import InputError

if TYPE_CHECKING:
    from cosim.rtl.abi import Recording
    from cosim.rtl.rtl_device import RtlDevice


#: For each stage on the accelerator, how often each candidate of its last program was selected.
Taken = Sequence[Counter[int]]


def work(network: CompiledNetwork, runs: Sequence[int], taken: Taken, samples: int) -> Floor:
    """Return the minimum work of a batch with `samples` valid samples.

    `runs` and `taken` are the amounts by which this batch increased the session's counts.
    """
    smaller = network.for_samples(samples)
    if smaller is not None:
        return smaller.floor
    return _without_spared(network, network.work(runs), taken)


def _without_spared(network: CompiledNetwork, floor: Floor, taken: Taken) -> Floor:
    """Subtract the work of the stages whose short programs ran, as often as `taken` says."""
    for stage, counts in zip(_coded(network), taken, strict=True):
        if stage.spared is not None:
            spared, times = stage.spared, counts[0]
            floor = Floor(
                floor.macs - times * spared.macs,
                floor.bytes - times * spared.bytes,
                floor.skipped - times * spared.skipped,
            )
    return floor


def layers(
    network: CompiledNetwork, runs: Sequence[int], taken: Taken, lengths: Sequence[int] = ()
) -> list[tuple[LayerInfo, int]]:
    """Return the layers with the number of times each ran; `lengths` are the lengths of the samples, if they differ."""
    if network.lengths is not None:
        each = ((network.at(length), times) for length, times in Counter(lengths).items())
        return [(info, times) for sized, times in each for info in sized.infos]
    out: list[tuple[LayerInfo, int]] = []
    for stage, times, counts in zip(_coded(network), runs, taken, strict=True):
        fewer = sum(counts[i] for i in range(len(network.smaller))) if network.smaller else counts[0]
        assert stage.code is not None
        last = stage.code.parts[-1].program.name
        for info in stage.infos:
            guarded = network.smaller or (stage.spared and info.program == last)
            out.append((info, times - fewer if guarded else times))
    for number, smaller in enumerate(network.smaller):
        out += [(info, taken[0][number]) for info in smaller.infos]
    return out


def variants(network: CompiledNetwork, taken: Taken) -> list[dict[str, Any]]:
    """Return the candidate programs with the number of times each was selected."""
    out = []
    for stage, counts in zip(_coded(network), taken, strict=True):
        assert stage.code is not None
        part = stage.code.parts[-1]
        if part.instead:
            guards = [*(str(variant.guard) for variant in part.instead), None]
            each = zip(part.programs, guards, strict=True)
            out += [
                {"program": program.name, "guard": guard, "words": len(program.words), "runs": counts[number]}
                for number, (program, guard) in enumerate(each)
            ]
    return out


def lengths_of(network: CompiledNetwork) -> dict[str, Any] | None:
    """Return the dimension with several lengths, and the lengths; None if all sizes are fixed."""
    lengths = network.lengths
    if lengths is None:
        return None
    return {"name": lengths.name, "values": list(lengths.values), "programs_up_to": list(lengths.longest)}


def sources(network: CompiledNetwork) -> list[dict[str, Any]]:
    """Return, for each layer, whether its schedule comes from the compiler or from a database of measurements."""
    known = {each.layer: each for each in network.sources}
    unknown = "file" if network.origin is Origin.FILE else "static"
    return [
        asdict(known.get(info.name, ProgramSource(info.name, info.shape, unknown))) for info in network.infos
    ]


def _coded(network: CompiledNetwork) -> list[Stage]:
    return [stage for stage in network.walk() if stage.code]


Arrays = Mapping[str, NDArray]
#: Maximum number of batches sent back to back to measure throughput.
STEADY = 4


@dataclass(frozen=True)
class Run:
    """Results of running samples.

    Parameters
    ----------
    samples : int
        Number of samples that ran.
    groups : list of int
        Number of samples in each batch.
    outputs : dict
        Output arrays by name, with samples along the first axis.
    cycles : list of int or None
        Cycles of each batch when run separately, without warm-up; None on a device without a clock.
    steady : float or None
        Cycles per batch when batches are sent back to back.
    load_cycles : int or None
        Cycles for loading the programs.
    split : CycleSplit or None
        Attribution of the cycles to causes.
    counts : dict
        Increase of the counters during the run, by tag.
    floors : list of Floor
        Minimum work of each batch.
    runs : list of int
        Number of runs of each stage on the accelerator.
    taken : list of Counter
        For each stage, how often each candidate of its last program was selected.
    seconds : float
        Wall time from doorbell to interrupt, summed over the batches run separately.
    recording : Recording or None
        Activity of the units during the first batch.
    lengths : list of int
        Length of each sample, if the network has programs for several lengths.
    """

    samples: int
    groups: list[int]
    outputs: dict[str, NDArray]
    cycles: list[int] | None
    steady: float | None
    load_cycles: int | None
    split: CycleSplit | None
    counts: ByTag
    floors: list[Floor]
    runs: list[int]
    taken: list[Counter[int]]
    seconds: float
    recording: "Recording | None" = None
    lengths: list[int] = field(default_factory=list)


def back_to_back(network: CompiledNetwork, samples: int) -> int:
    """Return the number of batches that `run_samples` sends back to back, for which the device needs memory."""
    return min(len(_sizes(network, samples)), STEADY)


def run_samples(
    device: Device,
    network: CompiledNetwork,
    samples: Sequence[Arrays],
    say: Callable[[str], None],
    *,
    recorder: "RtlDevice | None" = None,
    steadily: bool = True,
    proofs: ContentStore | None = None,
    rate: float | None = None,
    reset: bool = False,
) -> Run:
    """Run every batch separately and then, if `steadily`, some batches back to back.

    If the network has states, the samples are a sequence; if `reset`, each sample starts from the initial states.

    An incomplete batch is padded with its last sample; programs for smaller batches ignore the padding. `recorder`, if
    given, is the same device with a probe; it records the activity of its units during the first batch. `say` is called
    with progress messages, and `proofs` is as in `Session`. `rate` is the DRAM bandwidth in bytes per cycle (default:
    N).

    Raises
    ------
    ValidationError
        A program is unsafe at the addresses of the samples.
    InputError
        A sample is not a valid input, or batches run back to back took fewer cycles than the lower bound for their
        work.
    """
    clocked = not isinstance(device, GoldenDevice)
    for number, sample in enumerate(samples):
        network.for_inputs(sample).check_sample(sample, f"sample {number}: ")
    sizes, groups = _sizes(network, len(samples)), []
    for end, size in zip(accumulate(sizes), sizes, strict=True):
        groups.append(samples[end - size : end])
    filled = [stack_batch(network, group) for group in groups]
    in_flight = back_to_back(network, len(samples)) if clocked else 1
    session = Session(device, network, in_flight, proofs)
    session.progress = lambda taken: say(f"{taken:,} cycles so far")
    tags = [tag for code in network.codes for tag in code.tags]
    before = read_counts(session.driver, max(tags, default=-1) + 1)
    cycles, results, floors, lengths, recording = [], [], [], list[int](), None
    with progress(f"running {network.name}", len(samples), "samples") as task:
        for number, (group, inputs) in enumerate(zip(groups, filled, strict=True), 1):
            if reset:
                session.reset()
            runs, taken = session.runs, session.taken
            if recorder and number == 1:
                recorder.start_probe()
            result, took = session.measure(inputs, len(group))
            if recorder and number == 1:
                recording = recorder.stop_probe()
            ran = [now - then for now, then in zip(session.runs, runs, strict=True)]
            chosen = [now - then for now, then in zip(session.taken, taken, strict=True)]
            ran_on = network.for_inputs(inputs)
            floors.append(work(ran_on, ran, chosen, len(group)))
            lengths += [] if ran_on.length is None else [ran_on.length]
            cycles.append(took)
            results += split_batch(network, result, len(group))
            say(
                _progress(network, len(results), len(group), len(samples))
                + (f": {took:,} cycles" if clocked else "")
            )
            task.advance(len(group))
    counts = growth(before, read_counts(session.driver, max(tags, default=-1) + 1))
    outputs, done = _gathered(results), (counts, floors, session.runs, session.taken, session.seconds)
    if not clocked:
        return Run(len(samples), sizes, outputs, None, None, None, None, *done, lengths=lengths)
    parts = split(sum(cycles), counts, tags[-1], session.stalled_cycles) if tags else None
    taken = session.taken
    steady = session.throughput_cycles(filled[:in_flight], sizes[:in_flight]) if steadily else None
    if steady is not None:
        chosen = [now - then for now, then in zip(session.taken, taken, strict=True)]
        _check_steady(network, steady, floors[:in_flight], chosen, rate)
    return Run(
        len(samples), sizes, outputs, cycles, steady, session.load_cycles, parts, *done, recording, lengths
    )


def _check_steady(
    network: CompiledNetwork, steady: float, floors: Sequence[Floor], taken: Taken, rate: float | None
) -> None:
    """Raise InputError if batches run back to back took fewer cycles than the lower bound for their work.

    `floors` is the work of these batches when they ran one by one, and `taken` tells which programs ran back to back:
    whether inputs equal those of the sample before depends on the order.
    """
    rate = bus_rate(network.config, rate)
    if any(stage.spared is not None for stage in _coded(network)):
        whole = network.floor
        total = Floor(*(len(floors) * each for each in (whole.macs, whole.bytes, whole.skipped)))
        floors = [_without_spared(network, total, taken), *(Floor(0, 0, 0) for _ in floors[1:])]
    least = sum(floor.cycles(network.config, rate) for floor in floors) / len(floors)
    if steady < least:
        raise InputError(
            f"{network.name}: samples back to back took {steady:,.0f} cycles each, below the lower bound of"
            f" {least:,.0f} cycles for their work: the programs skip work; compile the model again"
        )


def _sizes(network: CompiledNetwork, samples: int) -> list[int]:
    """Return the batch sizes, in order, for running `samples` samples."""
    out: list[int] = []
    while (left := samples - sum(out)) > 0:
        out.append(network.best_batch(left))
    return out


def _progress(network: CompiledNetwork, done: int, count: int, total: int) -> str:
    which = f"sample {done}" if network.batch == 1 else f"samples {done - count + 1} to {done}"
    return f"{which} of {total}"


def _gathered(results: list[dict[str, NDArray]]) -> dict[str, NDArray]:
    return {name: stack_samples([result[name] for result in results]) for name in results[0]}


def stack_samples(arrays: Sequence[NDArray]) -> NDArray:
    """Concatenate samples along the first axis if its size is 1; otherwise, stack them along a new first axis."""
    first = arrays[0]
    return np.concatenate(arrays) if first.ndim and len(first) == 1 else np.stack(arrays)


def document(
    network: CompiledNetwork, run: Run, rate: float | None = None, clock: float | None = None
) -> dict[str, Any]:
    """Return the fields of `mla run`'s report that depend only on the network and the run.

    Parameters
    ----------
    network : CompiledNetwork
        Network that was run.
    run : Run
        Results of the run.
    rate : float or None
        DRAM bandwidth in bytes per cycle; None for one row of N bytes.
    clock : float or None
        Clock frequency in MHz for times and power; None omits them.
    """
    rate = bus_rate(network.config, rate)
    config, macs = network.config, _of_samples(network, run, sum(floor.macs for floor in run.floors))
    infos = layers(network, run.runs, run.taken, run.lengths)
    totals = {name: sum(row[name] for row in run.counts.values()) for name in COUNTED}
    cycles = None if run.cycles is None else sum(run.cycles)
    each = None if run.cycles is None else _each(run, median(run.cycles))
    steady = None if run.steady is None else _each(run, run.steady)
    energy = None if cycles is None else energy_uj(config, totals)
    return {
        "samples": run.samples,
        "batch": network.batch,
        "batches": network.batches,
        "lengths": run.lengths or None,
        "variants": variants(network, run.taken),
        "programs": sources(network),
        "cycles": cycles,
        "cycles_per_sample": each,
        "steady_cycles_per_sample": steady,
        "load_cycles": run.load_cycles,
        "macs": macs,
        "utilization": None if not cycles else macs / (cycles * config.n**2),
        "floor_cycles": sum(floor.cycles(config, rate) for floor in run.floors),
        "floor_layerwise_cycles": sum(info.floor.cycles(config, rate) * times for info, times in infos),
        "dram_bytes_read": totals["load_bytes"],
        "dram_bytes_written": totals["store_bytes"],
        "expanded_bytes": totals["load_expanded"],
        "skipped_macs": _of_samples(network, run, sum(floor.skipped for floor in run.floors)),
        "energy_uj": energy,
        "energy_parts_uj": None if cycles is None else energy_parts_uj(config, totals),
        **at_clock(clock, cycles, each, steady, energy),
        "memory": memory_use(network),
        "where": None if run.split is None else run.split.where,
        "host_ops": [asdict(each) for each in network.host],
        "removed": [asdict(each) for each in network.removed],
        "rewritten": [stored(each) for each in network.rewritten],
        "compile_seconds": network.compile_seconds,
        "origin": network.origin,
        "quantization": None if network.quantization is None else network.quantization.document(),
        "layers": _layers(network, run, infos, rate),
        "outputs": {
            name: {"shape": list(array.shape), "dtype": array.dtype.name, "sha256": digest(array)}
            for name, array in run.outputs.items()
        },
    }


def digest(array: NDArray) -> str:
    """Return the SHA-256 of the bytes of an array in C order, little endian."""
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return hashlib.sha256(little.tobytes()).hexdigest()


def _of_samples(network: CompiledNetwork, run: Run, macs: int) -> int:
    """Return `macs`, the multiply-accumulates of all batches, without the share of padding samples."""
    made_for = (network.for_samples(count) for count in run.groups)
    return macs * run.samples // sum(size.batch if size else network.batch for size in made_for)


def _each(run: Run, cycles: float) -> float:
    """Return the cycles per sample, given the cycles per batch, rounded to 0.1; padding samples do not count."""
    return cycles if len(run.floors) == run.samples else round(cycles * len(run.floors) / run.samples, 1)


def _layers(
    network: CompiledNetwork, run: Run, infos: list[tuple[LayerInfo, int]], rate: float
) -> list[dict[str, Any]]:
    """Return one entry per tag: one layer, or several if the network has more layers than counter tags."""
    by_tag: dict[int, list[tuple[LayerInfo, int]]] = {}
    for info, times in infos:
        by_tag.setdefault(info.tag, []).append((info, times))
    return [_entry(network, run, each, rate) for each in by_tag.values()]


def _entry(
    network: CompiledNetwork, run: Run, ran: list[tuple[LayerInfo, int]], rate: float
) -> dict[str, Any]:
    config, infos = network.config, [info for info, _ in ran]
    macs = _of_samples(network, run, sum(info.floor.macs * times for info, times in ran))
    causes = None if run.split is None else run.split.by_tag[infos[0].tag]
    cycles = None if causes is None else sum(causes.values())
    return {
        "layers": list(dict.fromkeys(info.name for info in infos)),
        "names": list(dict.fromkeys(name for info in infos for name in info.nodes)),
        "ops": [op for info in {info.nodes: info for info in infos}.values() for op in info.ops],
        "tag": infos[0].tag,
        "cycles": cycles,
        "macs": macs,
        "utilization": macs / (cycles * config.n**2) if cycles else None,
        "floor_cycles": sum(info.floor.cycles(config, rate) * times for info, times in ran),
        "bound": None if causes is None else bound(causes),
        "program": infos[0].program,
        "where": causes,
    }


@dataclass(frozen=True)
class DramUse:
    """DRAM use in bytes for one sample or batch, without the command ring and the programs.

    Parameters
    ----------
    weights : int
        Constants: weights, biases, scales and tables.
    inputs : int
        Tensors that the host writes before the accelerator has computed anything.
    outputs : int
        Tensors that the host reads and the accelerator does not read again.
    intermediate : int
        Buffers between layers, and tensors between stages.
    """

    weights: int
    inputs: int
    outputs: int
    intermediate: int

    @property
    def total(self) -> int:
        """Total number of bytes."""
        return self.weights + self.inputs + self.outputs + self.intermediate


def memory_use(network: CompiledNetwork) -> dict[str, Any]:
    """Return the memory use of a network: the content of the field `memory` in the JSON report.

    Peaks are None if unknown: for programs that were not generated by the compiler, and for compiled files that lack
    this field.
    """
    config, codes = network.config, network.codes
    peak = joint_peak(code.peak for code in codes)
    parts = [part for code in codes for part in code.parts]
    dram = dram_use(network)
    return {
        "scratchpad": {
            "peak_bytes": None if peak is None else peak.sp,
            "bytes": config.sp_bytes,
        },
        "accumulator": {
            "peak_bytes": None if peak is None else peak.acc,
            "bytes": config.acc_bytes,
        },
        "instruction_store": {
            "words": sum(len(program.words) for part in parts for program in part.programs),
            "available": config.wis_words,
            "resident": len(batches(config, parts)) == 1,
        },
        "dram": asdict(dram) | {"total": dram.total},
    }


def dram_use(network: CompiledNetwork) -> DramUse:
    """Return the DRAM use of a network; a tensor passed between two accelerator stages counts once per copy."""
    accelerated = [stage for stage in network.walk() if stage.code]
    weights = sum(stage.code.image.size for stage in accelerated if stage.code)
    buffers = sum(stage.code.memory for stage in accelerated if stage.code) - weights
    given = {tensor.name for tensor in network.inputs}
    wanted = {tensor.name for tensor in network.outputs}
    stages = [(_accelerated(each), _names(each.inputs), _names(each.outputs)) for each in network.stages]
    computed = _reached(stages)
    read_again = _reached((device, outputs, inputs) for device, inputs, outputs in reversed(stages))
    outer = {id(stage) for stage in network.stages}
    inputs = outputs = between = 0
    for stage in accelerated:
        inside = id(stage) not in outer  # of a subgraph: its tensors pass between stages
        for tensor in stage.inputs:
            if not inside and (tensor.name in given or tensor.name not in computed):
                inputs += tensor.bytes
            else:
                between += tensor.bytes
        for tensor in stage.outputs:
            if not inside and (tensor.name in wanted or tensor.name not in read_again):
                outputs += tensor.bytes
            else:
                between += tensor.bytes
    return DramUse(weights, inputs, outputs, buffers + between)


def _reached(stages: Iterable[tuple[bool, set[str], set[str]]]) -> set[str]:
    """Return the tensors reached from accelerator stages, directly or through subsequent host stages.

    Each stage is a tuple: True for an accelerator stage, the tensors that it starts from, and those that it leads to.
    """
    found: set[str] = set()
    for device, near, far in stages:
        if device or near & found:
            found |= far
    return found


def _accelerated(stage: Stage) -> bool:
    return any(inner.code for inner in stage.walk())


def _names(tensors: Iterable[Tensor]) -> set[str]:
    return {tensor.name for tensor in tensors}
