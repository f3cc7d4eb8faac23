"""Plans of programs that follow the data: a profile of the inputs, the programs that run for them, and their costs.

The decisions are not computed here: the inputs are served by the objects that `mla serve` consists of
(`compiler.online_tuning.serve`), strategies are rejected by the compiler's own messages, and costs are measured on the
simulated chip.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import mean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.codegen.executable import Regions, StageExecutable
from compiler.codegen.split_programs import ProgramPart
from compiler.cost.energy import energy_uj
from compiler.ir.tensor import Tensor
from compiler.online_tuning.observers import Document, ServingObserver
from compiler.online_tuning.serve import Serving, open_machine, serve
from compiler.pipeline import CompilationTrace
from compiler.profile.counters import growth, read_counts
from compiler.runtime.compiled import CompiledNetwork, stack_batch
from compiler.runtime.stages import Stage
from compiler.serving.audit import AUDITED
from compiler.serving.request import MacroTime, Request, RequestResult, RequestSource
from compiler.serving.server import Server
from compiler.serving.versions import coded
from compiler.util.progress import ProgressTask, progress
from compiler.util.tables import Column, counted, figures, format_table
from compiler.visualize.operators import layers_view
from compiler.visualize.view import Cost, View, add_edge, add_node, over_bus, size
from hw.errors import InputError
from hw.isa.counters import CAUSES
from hw.isa.enums import Compare

Arrays = Mapping[str, NDArray]

#: Name of the variant with the static compiler's programs.
USUAL = "usual"
_IMAGE_RANK = 4
#: What a program for regions selects its windows by.
_BLOCKS = "blocks with differences"
_NOTE = (
    "nodes: measured cycles and energy of programs and layers; of layers, the mean of the requests if an input is "
    "given. Edges: bytes, and cycles and energy of moving them over the bus once; edges without bytes are control"
)


@dataclass(frozen=True)
class InputProfile:
    """Values of an input in a sequence of samples.

    Parameters
    ----------
    name, dtype : str
        Name and type of the input.
    shapes : tuple of tuple of int
        Different shapes of the samples.
    zeros : float
        Share of the elements that are the zero point (0 for real numbers).
    low, high : float
        Smallest and largest element.
    repeated : int
        Number of samples that equal the previous one, byte by byte.
    distinct : int
        Number of different samples.
    changed, rectangle : float or None
        Of images that differ from the previous one: mean share of the pixels that differ, and of the pixels in the
        smallest rectangle that contains these; None for other inputs, or if there is no such image.
    """

    name: str
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    zeros: float
    low: float
    high: float
    repeated: int
    distinct: int
    changed: float | None
    rectangle: float | None

    def lines(self, samples: int) -> list[str]:
        """Return the profile of a number of samples as lines of text."""
        shapes = " or ".join("x".join(map(str, shape)) or "scalar" for shape in self.shapes)
        found = [
            f"{shapes} {self.dtype}, {self.low:,.6g} to {self.high:,.6g}, {self.zeros:.1%} zeros",
            f"{self.repeated:,} of {counted(samples, 'sample')} repeat the previous one, {self.distinct:,} different",
        ]
        if self.changed is not None:
            found.append(
                f"changed images: {self.changed:.1%} of the pixels differ, in {self.rectangle:.1%} of the image (means)"
            )
        return found


def profile_of(tensor: Tensor, samples: Sequence[NDArray]) -> InputProfile:
    """Return the profile of an input.

    Parameters
    ----------
    tensor : Tensor
        Input of one sample.
    samples : sequence of array
        Values in the order of the requests; their shapes may differ in a dimension with several lengths.
    """
    zero = tensor.quantization.zero_point[0] if tensor.quantization and samples[0].dtype.kind in "iu" else 0
    contents = [(each.shape, each.tobytes()) for each in samples]
    pairs = list(pairwise(contents))
    moved = [
        _changed(before, after)
        for before, after in pairwise(samples)
        if before.shape == after.shape and before.ndim == _IMAGE_RANK and before.tobytes() != after.tobytes()
    ]
    return InputProfile(
        tensor.name,
        samples[0].dtype.name,
        tuple(dict.fromkeys(each.shape for each in samples)),
        sum(int((each == zero).sum()) for each in samples) / max(sum(each.size for each in samples), 1),
        min(float(each.min()) for each in samples),
        max(float(each.max()) for each in samples),
        sum(before == after for before, after in pairs),
        len(set(contents)),
        mean(share for share, _ in moved) if moved else None,
        mean(share for _, share in moved) if moved else None,
    )


def _changed(before: NDArray, after: NDArray) -> tuple[float, float]:
    """Return the share of the pixels of an image that differ, and that of the smallest rectangle with all of them."""
    differs = (before != after).any(axis=(0, 3))
    rows, columns = differs.any(axis=1).nonzero()[0], differs.any(axis=0).nonzero()[0]
    box = (rows[-1] - rows[0] + 1) * (columns[-1] - columns[0] + 1)
    return float(differs.mean()), float(box / differs.size)


@dataclass(frozen=True)
class LayerCost:
    """Measured cost of a layer, or of layers that share a counter tag.

    Parameters
    ----------
    names : tuple of str
        Names of the layers.
    cycles : int or None
        Cycles in which the machine worked under their tag, fetching macro-instructions included; None on a machine
        without a clock.
    energy_uj : float or None
        Energy in microjoules; None on a machine without a clock.
    macs : int
        Multiply-accumulates that MATRIX issued.
    """

    names: tuple[str, ...]
    cycles: int | None
    energy_uj: float | None
    macs: int


@dataclass(frozen=True)
class Pruned:
    """Layer that a variant skips or of which it computes a part.

    Parameters
    ----------
    layer : str
        Name of the layer.
    computed : float
        Share of its multiply-accumulates that the variant computes; 0 if it skips the layer.
    why : str
        Reason why the variant does so.
    """

    layer: str
    computed: float
    why: str


@dataclass(frozen=True, eq=False)
class Variant:
    """Programs that run for some of the requests.

    Parameters
    ----------
    name : str
        Name, such as `usual`, `reused` or `batch of 4`.
    guard : str
        Guard with which the chip selects them; empty if there is none.
    cycles : int or None
        Cycles of a request or batch; None if not measured.
    energy_uj : float or None
        Energy in microjoules of a request or batch.
    programs : tuple of (str, int or None)
        Names and cycles of the programs, in order.
    layers : tuple of LayerCost
        Costs by layer.
    samples : int
        Number of samples that they compute.
    pruned : tuple of Pruned
        Layers that they skip or compute in part.
    """

    name: str
    guard: str
    cycles: int | None
    energy_uj: float | None
    programs: tuple[tuple[str, int | None], ...] = ()
    layers: tuple[LayerCost, ...] = ()
    samples: int = 1
    pruned: tuple[Pruned, ...] = ()


@dataclass(frozen=True)
class Decision:
    """Requests that were served in the same way.

    Parameters
    ----------
    variant : str
        Name of the variant that ran.
    why : str
        Reason of the server; empty if it has no choice.
    requests : int
        Number of requests.
    cycles : float or None
        Mean cycles of a request while it was served; None on a machine without a clock.
    """

    variant: str
    why: str
    requests: int
    cycles: float | None


@dataclass(frozen=True)
class Strategy:
    """Strategy that was considered.

    Parameters
    ----------
    option : str
        Options of `mla serve` that select it.
    state : str
        `chosen`, `rejected` or `possible`.
    reason : str
        Reason for this state.
    guards : dict or None
        Number of requests for which each variant runs if every request is compared; None without an input.
    cycles : float or None
        Mean cycles of a request if every request is compared.
    """

    option: str
    state: str
    reason: str
    guards: dict[str, int] | None = None
    cycles: float | None = None


@dataclass(frozen=True, eq=False)
class PlanRequest:
    """Settings of a plan.

    Parameters
    ----------
    record : CompilationTrace
        Record of the compilation of the network as usual.
    serving : Serving
        Settings of `mla serve`.
    following : CompiledNetwork or None
        The one of its networks whose programs follow the data; None if there is none.
    option : str
        Options of `mla serve` that select it.
    requests : sequence of Request
        Requests; empty if no input is given.
    sample : dict
        Inputs with which the costs are measured.
    others : sequence of (str, callable)
        Options of other strategies, and functions that compile the network with these options.
    device : str
        "rtl" or "golden"; the golden model has no clock.
    """

    record: CompilationTrace
    serving: Serving
    following: CompiledNetwork | None
    option: str
    requests: Sequence[Request]
    sample: Arrays
    others: Sequence[tuple[str, Callable[[], CompiledNetwork]]]
    device: str = "rtl"

    @property
    def usual(self) -> CompiledNetwork:
        """The network with the static compiler's programs."""
        assert self.record.network is not None
        return self.record.network


@dataclass(frozen=True, eq=False)
class DispatchPlan:
    """Plan of the programs of a network.

    Parameters
    ----------
    request : PlanRequest
        Settings of the plan.
    profile : tuple of InputProfile
        Profile of each input; empty if no input is given.
    variants : tuple of Variant
        Variants of the programs, the usual ones first.
    guards : dict or None
        Number of requests for which each variant runs if every request is compared.
    decisions : tuple of Decision
        What the server decided.
    notes : tuple of str
        Events while the requests were served.
    strategies : tuple of Strategy
        Strategies that were considered.
    """

    request: PlanRequest
    profile: tuple[InputProfile, ...]
    variants: tuple[Variant, ...]
    guards: dict[str, int] | None
    decisions: tuple[Decision, ...]
    notes: tuple[str, ...]
    strategies: tuple[Strategy, ...]
    shares: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        total = sum(each.requests for each in self.decisions)
        shares: dict[str, float] = {}
        for each in self.decisions:
            shares[each.variant] = shares.get(each.variant, 0.0) + each.requests / total
        object.__setattr__(self, "shares", shares)

    @property
    def served_cycles(self) -> float | None:
        """Mean cycles of a request while the requests were served; None without an input or a clock."""
        known = [(each.requests, each.cycles) for each in self.decisions if each.cycles is not None]
        return sum(n * cycles for n, cycles in known) / sum(n for n, _ in known) if known else None

    def expected(self, value: Callable[[Variant], float | None]) -> float | None:
        """Return the mean of a value of a request, given how often each variant ran; None if it is not known."""
        found, total = {each.name: each for each in self.variants}, 0.0
        for name, share in self.shares.items():
            variant = found.get(name)
            one = None if variant is None else value(variant)
            if variant is None or one is None:
                return None
            total += share * one / variant.samples
        return total if self.shares else None

    def layer(self, name: str, value: Callable[[LayerCost], float | None]) -> float | None:
        """Return the expected value of a layer of a request, or that of the usual programs if no input is given."""

        def of(variant: Variant) -> float | None:
            if variant.cycles is None or not variant.layers:
                return None
            costs = (each for each in variant.layers if name in each.names)
            return sum((value(each) or 0.0) / len(each.names) for each in costs)

        return self.expected(of) if self.shares else of(self.variants[0])

    def document(self) -> dict[str, Any]:
        """Return the plan as JSON fields."""
        requests = len(self.request.requests)
        return {
            "option": self.request.option or None,
            "device": self.request.device,
            "input": "given" if requests else "no input given",
            "requests": requests,
            "profile": [
                {**vars(each), "shapes": [list(shape) for shape in each.shapes]} for each in self.profile
            ],
            "variants": [
                {
                    "name": each.name,
                    "guard": each.guard or None,
                    "samples": each.samples,
                    "cycles": each.cycles,
                    "energy_uj": each.energy_uj,
                    "share": self.shares.get(each.name, 0.0) if self.shares else None,
                    "programs": [{"program": name, "cycles": cycles} for name, cycles in each.programs],
                    "layers": [{**vars(cost), "names": list(cost.names)} for cost in each.layers],
                    "pruned": [vars(layer) for layer in each.pruned],
                }
                for each in self.variants
            ],
            "guards": self.guards,
            "decisions": [vars(each) for each in self.decisions],
            "notes": list(self.notes),
            "expected_cycles": self.expected(lambda each: each.cycles),
            "expected_energy_uj": self.expected(lambda each: each.energy_uj),
            "served_cycles": self.served_cycles,
            "strategies": [vars(each) for each in self.strategies],
        }

    def lines(self) -> list[str]:
        """Return the plan as lines of text."""
        requests, out = len(self.request.requests), list[str]()
        for each in self.profile:
            first, *rest = each.lines(requests)
            out += [f"input {each.name}: {first}", *(f"    {line}" for line in rest)]
        if not requests:
            out.append("no input given: how often each variant runs is unknown (--input FILE)")
        out += ["", *self._variants(), ""]
        for variant in self.variants:
            out += [f"{variant.name}: {line}" for line in _grouped(variant.pruned)]
        if self.guards is not None:
            counts = ", ".join(f"{name} {count:,}" for name, count in self.guards.items())
            out.append(f"if every request is compared: {counts} of {counted(requests, 'request')}")
        for each in self.decisions:
            cycles = "" if each.cycles is None else f", {each.cycles:,.0f} cycles each"
            why = f": {each.why}" if each.why else ""
            out.append(f"served as {each.variant}: {counted(each.requests, 'request')}{cycles}{why}")
        out += [f"note: {each}" for each in self.notes]
        out += [f"strategy {each.option}: {each.state}, {each.reason}" for each in self.strategies]
        return out

    def _variants(self) -> list[str]:
        rows = [
            [
                each.name,
                each.guard or "-",
                _number(each.cycles),
                _number(each.energy_uj, 2),
                f"{self.shares.get(each.name, 0.0):.1%}" if self.shares else "-",
            ]
            for each in self.variants
        ]
        if self.shares:
            energy = self.expected(lambda each: each.energy_uj)
            cycles = self.expected(lambda each: each.cycles)
            rows.append(["expected, per request", "-", _number(cycles), _number(energy, 2), "100.0%"])
            rows.append(["served, per request", "-", _number(self.served_cycles), "-", "100.0%"])
        columns = [Column("variant"), Column("guard"), *figures("cycles", "uJ", "requests")]
        return format_table(columns, rows).split("\n")


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _grouped(pruned: Sequence[Pruned]) -> Iterator[str]:
    """Yield lines of text about layers that are skipped or computed in part."""
    for why in dict.fromkeys(each.why for each in pruned):
        mine = [each for each in pruned if each.why == why]
        parts = [
            each.layer if not each.computed else f"{each.layer} ({each.computed:.1%} computed)"
            for each in mine
        ]
        verb = "skips" if not any(each.computed for each in mine) else "computes less of"
        yield f"{verb} {', '.join(parts)}: {why}"


# --- Which variant ran ---


@dataclass(frozen=True)
class _Kind:
    """Names of a program's variant, and what a layer's absence means."""

    name: str
    guard: str
    why: str = ""


class VariantNames:
    """Names of the variants of a network's programs, by the guards that select them.

    Parameters
    ----------
    network : CompiledNetwork
        Network whose programs are named.
    """

    def __init__(self, network: CompiledNetwork):
        self.network = network
        self.regions: dict[str, Regions] = {}
        self.kinds: dict[str, _Kind] = {}
        for stage in coded(network):
            assert stage.code is not None
            if stage.code.regions is not None:
                self.regions[stage.code.parts[-1].program.name] = stage.code.regions
            self._add(stage.code)

    def _add(self, code: StageExecutable) -> None:
        last, network = code.parts[-1], self.network
        guards = [each.guard for each in last.instead]
        if not guards or network.lengths is not None:
            return
        if guards[0].statistic is None:
            names, why = [f"batch of {size}" for size in network.batches], ""
        elif guards[0].compare == Compare.GE:
            names, why = ["accepted", "exact"], "the narrow network is certain of the label"
        elif code.mutable:
            names, why = ["reused", "computed"], "the inputs equal those of the last compared request"
        else:
            names, why = ["zeros", "not zeros"], "all elements of the tensor equal its zero point"
        texts = [*map(str, guards), "otherwise"]
        for program, name, guard in zip(last.programs, names, texts, strict=True):
            self.kinds[program.name] = _Kind(name, guard, why)

    @property
    def compares(self) -> bool:
        """True if a guard tests the data of requests."""
        parts = (part for code in self.network.codes for part in code.parts)
        guards = (variant.guard for part in parts for variant in part.instead)
        return bool(self.regions) or any(guard.statistic is not None for guard in guards)

    def name(self, macros: Sequence[MacroTime], inputs: Arrays) -> str:
        """Return the name of the variant that ran, given the macro-instructions of a request and its inputs."""
        if self.network.lengths is not None:
            return self.of_length(self.length(inputs))
        found: dict[str, None] = {}
        for macro in macros:
            if macro.program in self.regions:
                found[_window(self.regions[macro.program], macro.instructions)] = None
            elif macro.program in self.kinds:
                found[self.kinds[macro.program].name] = None
        return " and ".join(found) or USUAL

    def length(self, inputs: Arrays) -> int:
        """Return the length of the inputs of a network with several lengths."""
        return self.network.length_of({name: np.shape(array) for name, array in inputs.items()})

    def of_length(self, length: int) -> str:
        """Return the name of the variant for a length."""
        assert self.network.lengths is not None
        return f"{self.network.lengths.name} {length}"

    def wanted(self, requests: Sequence[Request]) -> dict[str, str]:
        """Return the names of the variants that can be expected, with their guards.

        Of a network with several lengths, these are the lengths of the requests or, without requests, the longest
        length of each program.
        """
        lengths = self.network.lengths
        if lengths is not None:
            used = sorted({self.length(each.inputs) for each in requests}) or lengths.longest
            return {self.of_length(length): self._length_guard(length) for length in used}
        found = {kind.name: kind.guard for kind in self.kinds.values()}
        for regions in self.regions.values():
            windows = ["reused", *(f"{h} x {w} pixels" for h, w in regions.windows)]
            found |= dict.fromkeys(windows, _BLOCKS)
        return found or {USUAL: ""}

    def _length_guard(self, length: int) -> str:
        """Return the guard of the program for a length."""
        guards = [each.guard for code in self.network.codes for each in code.parts[-1].instead]
        return next((str(guard) for guard in guards if guard.holds(length)), "otherwise" if guards else "")

    def guard(self, macros: Sequence[MacroTime]) -> str:
        """Return the guards with which the programs were selected."""
        found = [self.kinds[macro.program].guard for macro in macros if macro.program in self.kinds]
        found += [_BLOCKS for macro in macros if macro.program in self.regions]
        return " and ".join(dict.fromkeys(found))

    def pruned(self, run: "_BenchRun", usual: Sequence[LayerCost]) -> tuple[Pruned, ...]:
        """Return the layers that a run skipped or computed in part; `usual` are the costs of all layers."""
        found = list[Pruned]()
        ran = {macro.program for macro in run.macros}
        for stage in coded(self.network):
            assert stage.code is not None
            last = stage.code.parts[-1]
            chosen = next((v for v in last.instead if v.program.name in ran), None)
            if (regions := self.regions.get(last.program.name)) is not None:
                (macro,) = (macro for macro in run.macros if macro.program == last.program.name)
                if regions.computed(macro.instructions) is None:
                    why = "no byte of the inputs has changed"
                    found += [Pruned(info.name, 0.0, why) for info in stage.infos]
                else:
                    why = "only what depends on the changed window is computed"
                    found += self._shrunk(run, usual, stage, why)
            elif chosen is not None and chosen.guard.statistic is not None:
                kind = self.kinds[chosen.program.name]
                names = dict.fromkeys(stage.infos[number].name for number in last.layers)
                found += [Pruned(name, 0.0, f"{kind.guard}, {kind.why}") for name in names]
            elif self.network.lengths is not None:
                found += self._shrunk(run, usual, stage, "rows beyond the length are not computed")
        return tuple(found)

    def _shrunk(
        self, run: "_BenchRun", usual: Sequence[LayerCost], stage: Stage, why: str
    ) -> Iterator[Pruned]:
        """Yield the layers for which fewer multiply-accumulates were counted than usual."""
        mine = {name: cost for cost in run.layers for name in cost.names}
        for cost in usual:
            for name in cost.names:
                if cost.macs and name in mine and any(info.name == name for info in stage.infos):
                    share = mine[name].macs / cost.macs
                    if share < 1:
                        yield Pruned(name, share, why)


def _window(regions: Regions, instructions: int) -> str:
    """Return the name of the variant of a program for regions, given the number of its instructions."""
    size = regions.computed(instructions)
    if size is None:
        return "reused"
    return "other inputs" if size == (0, 0) else f"{size[0]} x {size[1]} pixels"


# --- Measurements ---


@dataclass(frozen=True, eq=False)
class _BenchRun:
    """Measured run: macro-instructions, cycles and energy in microjoules (None without a clock), and costs by layer."""

    macros: tuple[MacroTime, ...]
    cycles: int | None
    energy: float | None
    layers: tuple[LayerCost, ...]


class _Bench:
    """Machine that runs one request after the other.

    Parameters
    ----------
    plan : PlanRequest
        Settings of the plan.
    network : CompiledNetwork
        Network to run.
    device : str
        "rtl" or "golden".
    """

    def __init__(self, plan: PlanRequest, network: CompiledNetwork, device: str):
        self.network, self.names = network, VariantNames(network)
        serving = Serving(network, plan.serving.dram, max_in_flight=1, proofs=plan.serving.proofs)
        self.device, self.clocked = open_machine(serving, device), device == "rtl"
        self.server = Server(self.device, network, 1, serving.proofs)
        self._tags = max((tag for code in network.codes for tag in code.tags), default=-1) + 1

    def __enter__(self) -> "_Bench":
        self.device.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.device.__exit__(*error)  # pyright: ignore[reportArgumentType]

    def macros(self, inputs: Arrays) -> tuple[MacroTime, ...]:
        """Run a request, and return its macro-instructions."""
        self.server.submit(inputs)
        (result,) = self.server.results(wait=True)
        return result.macros

    def run(self, inputs: Arrays, count: int | None = None) -> _BenchRun:
        """Run and measure a request, or a batch with `count` valid samples."""
        before = read_counts(self.server.driver, self._tags)
        self.server.submit(inputs, count)
        (result,) = self.server.results(wait=True)
        counts = growth(before, read_counts(self.server.driver, self._tags))
        config, names = self.network.config, dict[int, list[str]]()
        for info in self.network.infos:
            if info.name not in names.setdefault(info.tag, []):
                names[info.tag].append(info.name)
        layers = tuple(
            LayerCost(
                tuple(names.get(tag, ())),
                sum(row[f"cause_{cause}"] for cause in CAUSES if cause != "idle") if self.clocked else None,
                energy_uj(config, row) if self.clocked else None,
                row["macs_issued"],
            )
            for tag, row in counts.items()
        )
        if not self.clocked:
            return _BenchRun(result.macros, None, None, layers)
        energy = sum(energy_uj(config, row) for row in counts.values())
        return _BenchRun(result.macros, result.cycles, energy, layers)


def _probes(plan: PlanRequest, network: CompiledNetwork) -> Iterator[tuple[Arrays, int | None, int]]:
    """Yield inputs for which, in this order, each variant of a network runs; and the number of valid samples, or None.

    The last element is the number of samples that the programs compute.
    """
    sample = plan.sample
    if network.batch > 1:
        for size in network.batches:
            yield stack_batch(network, [sample] * size), size, size
        return
    if network.lengths is not None:
        yield from ((request.inputs, None, 1) for request in plan.requests)
        for most in () if plan.requests else network.lengths.longest:
            yield {tensor.name: _zeros(tensor) for tensor in network.at(most).inputs}, None, 1
        return
    zeros = {tensor.name: _zeros(tensor) for tensor in network.inputs}
    if plan.serving.network.lengths is not None:  # the network for the longest length: samples may be shorter
        yield zeros, None, 1
        return
    yield from ((each, None, 1) for each in (sample, sample))
    for code in network.codes:
        for height, width in code.regions.windows if code.regions else ():
            images = [t for t in network.inputs if t.shape[1:3] == code.regions.image]  # type: ignore[union-attr]
            for tensor in images[:1]:
                changed = np.array(sample[tensor.name])
                for row, column in ((0, 0), (height - 1, width - 1)):
                    changed[0, row, column] = (
                        changed[0, row, column] ^ 1 if changed.dtype.kind in "iu" else -1
                    )
                yield {**sample, tensor.name: changed}, None, 1
                yield sample, None, 1
    yield zeros, None, 1
    yield from ((request.inputs, None, 1) for request in plan.requests)


def _zeros(tensor: Tensor) -> NDArray:
    """Return the zero points of an input."""
    zero = tensor.quantization.zero_point[0] if tensor.quantization and tensor.dtype != "float32" else 0
    return np.full(tensor.shape, zero, tensor.dtype)


#: Largest number of requests that are run in search of one that a variant serves.
_MAX_PROBES = 64


def _measured(plan: PlanRequest, network: CompiledNetwork, usual: Sequence[LayerCost]) -> list[Variant]:
    """Return the variants of a network, with their costs."""
    found: dict[str, Variant] = {}
    with _Bench(plan, network, plan.device) as bench:
        wanted = bench.names.wanted(plan.requests)
        for number, (inputs, count, samples) in enumerate(_probes(plan, network)):
            if wanted.keys() <= found.keys() or number == _MAX_PROBES:
                break
            run = bench.run(inputs, count)
            name = bench.names.name(run.macros, inputs)
            if name in found:
                continue
            found[name] = Variant(
                name,
                wanted.get(name) or bench.names.guard(run.macros),
                run.cycles,
                run.energy,
                tuple((macro.program, macro.cycles if bench.clocked else None) for macro in run.macros),
                run.layers,
                samples,
                bench.names.pruned(run, usual),
            )
    # Variants for which no input is known, such as zeros of an intermediate tensor, have no cost.
    known = {name: found.pop(name, Variant(name, guard, None, None)) for name, guard in wanted.items()}
    return [*known.values(), *found.values()]


def _guards(plan: PlanRequest, network: CompiledNetwork) -> dict[str, int] | None:
    """Return for how many requests each variant runs if every request is compared; None if no guard tests data."""
    names = VariantNames(network)
    if not plan.requests or not names.compares or network.batch > 1:
        return None
    found = Counter(dict.fromkeys(names.wanted(plan.requests), 0))
    with _Bench(plan, network, "golden") as bench:
        for request in plan.requests:
            found[names.name(bench.macros(request.inputs), request.inputs)] += 1
    return dict(found)


class _Collector(ServingObserver):
    """Collects the results and the decisions of a server."""

    def __init__(self, task: ProgressTask) -> None:
        self.task, self.results, self.notes = task, list[RequestResult](), list[str]()

    def result(self, result: RequestResult) -> None:
        """Keep a result."""
        self.results.append(result)
        self.task.advance(1)

    def event(self, document: Document) -> None:
        """Keep the reason of a decision."""
        self.notes.append(f"{document['event']}: {document.get('reason', '')}")


def _decisions(plan: PlanRequest) -> tuple[tuple[Decision, ...], tuple[str, ...]]:
    """Serve the requests, and return how they were served."""
    if not plan.requests:
        return (), ()
    with (
        progress("serving the requests", len(plan.requests), "requests") as task,
        open_machine(plan.serving, plan.device) as device,
    ):
        seen = _Collector(task)
        serve(plan.serving, device, RequestSource(iter(plan.requests)), [seen])
    names: dict[int, VariantNames] = {}
    groups: dict[tuple[str, str], list[float]] = {}
    for result in seen.results:
        network = result.version.network
        known = names.setdefault(id(network), VariantNames(network))
        name = AUDITED if result.variant == AUDITED else known.name(result.macros, result.inputs)
        groups.setdefault((name, result.why), []).append((result.cycles + result.delay) / result.batch_size)
    clocked = plan.device == "rtl"
    decisions = tuple(
        Decision(name, why, len(cycles), mean(cycles) if clocked else None)
        for (name, why), cycles in groups.items()
    )
    return decisions, tuple(seen.notes)


def _strategy(
    plan: PlanRequest, option: str, made: Callable[[], CompiledNetwork], usual: Variant
) -> Strategy:
    """Judge a strategy that was not chosen, by the compiler's message, or by its costs for the requests."""
    try:
        network = made()
    except InputError as error:
        return Strategy(option, "rejected", re.sub(r"^(--)?[\w-]+: ", "", str(error)))
    if not network.codes:
        return Strategy(option, "rejected", f"{network.name!r} has no layer on the accelerator")
    variants = _measured(plan, network, usual.layers)
    guards = _guards(plan, network)
    costs = {each.name: each.cycles for each in variants}
    known = ", ".join(f"{each.name} {each.cycles:,} cycles" for each in variants if each.cycles is not None)
    if network.smaller:
        text = f": {known}" if known else ""
        return Strategy(option, "possible", f"needs requests that wait for each other{text}")
    if guards is None:
        text = f": {known}" if known else ""
        why = "a batch has several requests" if plan.requests else "no input given"
        return Strategy(option, "possible", f"how often its guards hold is unknown, {why}{text}")
    total = len(plan.requests)
    counts = ", ".join(f"{name} {count:,}" for name, count in guards.items())
    if usual.cycles is None or any(costs.get(name) is None for name, count in guards.items() if count):
        return Strategy(option, "possible", f"of {counted(total, 'request')}: {counts}", guards)
    cycles = sum(count * (costs[name] or 0) for name, count in guards.items() if count) / total
    text = (
        f"{cycles:,.0f} cycles expected, {usual.cycles:,} as usual; of {counted(total, 'request')}: {counts}"
    )
    return Strategy(option, "possible" if cycles < usual.cycles else "rejected", text, guards, cycles)


def plan_of(request: PlanRequest) -> DispatchPlan:
    """Profile the inputs, measure the variants, serve the requests, and judge other strategies.

    Raises
    ------
    InputError
        An input does not fit the model.
    WorkError
        The simulator cannot be built.
    """
    samples = [each.inputs for each in request.requests]
    network = request.serving.network
    profile = tuple(
        profile_of(tensor, [np.asarray(sample[tensor.name]) for sample in samples])
        for tensor in (network.sample if samples else ())
    )
    with progress("measuring variants"):
        usual, *_ = _measured(request, request.usual, ())
        variants = [usual]
        if request.following is not None:
            variants += _measured(request, request.following, usual.layers)
    guards = None if request.following is None else _guards(request, request.following)
    decisions, notes = _decisions(request)
    known = {each.name for each in variants}
    # Such as requests that the server also computed exactly for an audit.
    variants += [
        Variant(each.variant, "", None if each.cycles is None else round(each.cycles), None)
        for each in decisions
        if each.variant not in known
    ]
    chosen = (
        Strategy(request.option, "chosen", "asked for", guards)
        if request.option
        else Strategy("none", "chosen", "the static compiler's programs run for every request")
    )
    with progress("judging other strategies", len(request.others), "strategies") as task:
        others = []
        for option, made in request.others:
            others.append(_strategy(request, option, made, usual))
            task.advance(1)
    return DispatchPlan(request, profile, tuple(variants), guards, decisions, notes, (chosen, *others))


# --- View ---


def plan_view(plan: DispatchPlan) -> View:
    """Return the view of a plan: the layers with their expected costs, and the programs and guards that run them."""
    record = plan.request.record
    view = layers_view(record.graphs["reduced"], record.parts, record.streams, record.config)
    view.graph |= {"stage": "plan", "note": _NOTE, "plan": plan.document(), "summary": plan.lines()}
    expected = plan.expected(lambda each: each.cycles)
    if expected is not None:
        view.graph["cycles"] = round(expected)
    profiles = {each.name: each for each in plan.profile}
    for key, data in view.nodes(data=True):
        if data["kind"] == "input":
            each = profiles.get(key.removeprefix("in "))
            data["text"] += each.lines(len(plan.request.requests)) if each else ["no input given"]
        elif data["kind"] == "layer":
            _cost_layer(plan, key, data)
    if plan.request.following is not None:
        _Programs(plan, view, plan.request.following).add()
    return view


def _cost_layer(plan: DispatchPlan, name: str, data: dict[str, Any]) -> None:
    """Set the cost of a layer's node to the measured one, and add which variants skip it or compute a part of it."""
    cycles, energy = (
        plan.layer(name, value) for value in (lambda cost: cost.cycles, lambda cost: cost.energy_uj)
    )
    data["text"] = [line for line in data["text"] if not line.endswith("cycles")]
    data.pop("cycles", None)
    data.pop("pj", None)
    if cycles is not None and energy is not None:
        data["cycles"], data["pj"] = round(cycles), round(energy * 1e6, 1)
        data["text"].append(f"{data['cycles']:,} cycles")
    for variant in plan.variants:
        for each in variant.pruned:
            if each.layer == name:
                part = f"{each.computed:.1%} computed" if each.computed else "skipped"
                data["text"].append(f"{variant.name}: {part}")


@dataclass(frozen=True)
class _Programs:
    """Builder that adds the programs and the guards of a network to the view of its layers."""

    plan: DispatchPlan
    view: View
    network: CompiledNetwork

    def add(self) -> None:
        """Add all stages on the accelerator."""
        for number, stage in enumerate(coded(self.network)):
            if stage.code is not None:
                self._stage(stage, stage.code, f"stage {number} " if len(self.network.codes) > 1 else "")

    def _stage(self, stage: Stage, code: StageExecutable, prefix: str) -> None:
        last, names, before = code.parts[-1], VariantNames(self.network), ""
        guard, copies = f"{prefix}dispatch", f"{prefix}copies"
        for part in code.parts[:-1]:
            key = self._program(part.program.name, len(part.program.words), prefix)
            if before:
                add_edge(self.view, before, key, "order", Cost())
            else:
                self._reads(key, stage)
            self._runs(key, stage, part)
            before = key
        guards = [*(str(each.guard) for each in last.instead), "otherwise"]
        texts = [f"{text}: {each.name}" for text, each in zip(guards, last.programs, strict=True)]
        if code.regions is not None:
            texts = ["the program compares the image with its copy, block by block"]
        add_node(self.view, guard, "guard", "dispatch", *texts)
        if before:
            add_edge(self.view, before, guard, "statistics", Cost())
        else:
            self._reads(guard, stage)
        if code.mutable:
            text = size(code.mutable)
            add_node(self.view, copies, "buffer", "copies", "inputs and results of earlier requests", text)
            for tensor in stage.inputs:
                add_edge(self.view, copies, before or guard, tensor.name, self._bus(tensor))
        choices = [(each, text, None) for each, text in zip(last.programs, guards, strict=True)]
        if code.regions is not None:
            choices = [(last.program, _BLOCKS, variant) for variant in self.plan.variants[1:]]
        for program, text, variant in choices:
            words = 0 if variant else len(program.words)
            key = self._program(variant.name if variant else program.name, words, prefix, variant)
            add_edge(self.view, guard, key, text, Cost())
            skips = program is not last.program and names.compares
            if skips or (variant is not None and variant.name == "reused"):
                self._skips(key, stage, copies if code.mutable else "")
            else:
                self._runs(key, stage, last)

    def _reads(self, key: str, stage: Stage) -> None:
        """Add the edges from the nodes that make the inputs of a stage."""
        graph = self.plan.request.record.graphs["reduced"]
        for tensor in stage.inputs:
            maker = graph.producer(tensor.name)
            source = f"in {tensor.name}" if maker is None else maker.name
            if source in self.view:
                add_edge(self.view, source, key, tensor.name, self._bus(tensor))

    def _skips(self, key: str, stage: Stage, copies: str) -> None:
        """Add the edges from a program that writes known results, from its copies and to their readers."""
        graph = self.plan.request.record.graphs["reduced"]
        for tensor in stage.outputs:
            if copies:
                add_edge(self.view, copies, key, tensor.name, self._bus(tensor))
            readers = [f"out {tensor.name}", *(node.name for node in graph.consumers(tensor.name))]
            for reader in readers:
                if reader in self.view:
                    add_edge(self.view, key, reader, tensor.name, self._bus(tensor))

    def _runs(self, key: str, stage: Stage, part: ProgramPart) -> None:
        """Add the edges from a program to the layers that it starts with."""
        mine = dict.fromkeys(stage.infos[number].name for number in part.layers)
        known = [name for name in mine if name in self.view]
        for name in known:
            if not any(before in mine for before in self.view.predecessors(name)):
                add_edge(self.view, key, name, "runs", Cost())

    def _program(self, name: str, words: int, prefix: str, variant: Variant | None = None) -> str:
        """Add the node of a program, or of a window of a program for regions."""
        runs = [each for each in self.plan.variants if any(program == name for program, _ in each.programs)]
        known = [dict(each.programs)[name] for each in runs if each.cycles is not None]
        cycles = variant.cycles if variant else known[0] if known else None
        shares = [variant] if variant else runs
        share = sum(self.plan.shares.get(each.name, 0.0) for each in shares)
        key = f"{prefix}program {name}"
        add_node(
            self.view,
            key,
            "program",
            name,
            f"{words:,} words" if words else "",
            f"{cycles:,} cycles" if cycles is not None else "not measured",
            f"runs for {share:.1%} of the requests" if self.plan.shares else "",
            cycles=cycles,
            pj=variant.energy_uj * 1e6 if variant and variant.energy_uj is not None else None,
        )
        return key

    def _bus(self, tensor: Tensor) -> Cost:
        return over_bus(self.network.config, tensor.bytes)
