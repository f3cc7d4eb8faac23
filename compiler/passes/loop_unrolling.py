"""Choice of how far loops with a known number of iterations are unrolled, by their costs on accelerator and host.

Each iteration of a loop is at least one stage on the accelerator, which the host starts and waits for. A loop that is
unrolled by a factor k has fewer iterations, but k times as many layers, whose programs take time to compile and, if
they do not fit the instruction store, time to load in every iteration.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from compiler.ir.graph import Graph, Node, rebuild
from compiler.options import HostCosts
from compiler.passes.control_flow import (
    MAX_UNROLLED_NODES,
    known_trips,
    several_steps,
    trim_control,
    unroll_loops,
)
from compiler.passes.kernel_sizes import Rewritten
from compiler.reference import Kernels
from compiler.reference.control import MAX_ITERATIONS
from hw.config import MlaConfig
from hw.errors import InputError, did_you_mean, shown

#: Words of the programs of a layer: mean of the layers of LSTM and GRU networks of 8 to 100 steps on n16 (28 to 30).
WORDS_PER_LAYER = 29
#: Cycles to load a word of a program from DRAM: 60,699 cycles for 21,786 words, measured on n16 (RTL).
_CYCLES_PER_WORD = 2.8
#: Number of stages that take the remaining steps from scanned tensors and add them to stacked tensors.
_STAGES_OF_REST = 2
#: A smaller factor is chosen if it makes the loop slower by at most this share.
_TOLERANCE = 0.05
#: Maximum number of nodes of a loop that is unrolled by a factor that the user has specified.
_MAX_FORCED_NODES = 1 << 14
#: Limit on the nodes that are visited to determine a number of iterations.
_MAX_VISITED = 1 << 20


@dataclass(frozen=True)
class StepCost:
    """Estimated cost of the nodes of a loop's body.

    Parameters
    ----------
    cycles : float
        Cycles of the layers on the accelerator.
    microseconds : float
        Time of the nodes on the host.
    stages, layers : float
        Number of stages and of layers on the accelerator.
    """

    cycles: float = 0.0
    microseconds: float = 0.0
    stages: float = 0.0
    layers: float = 0.0

    def __add__(self, other: "StepCost") -> "StepCost":
        return StepCost(*(a + b for a, b in zip(self._values, other._values, strict=True)))

    def __mul__(self, factor: float) -> "StepCost":
        return StepCost(*(factor * a for a in self._values))

    @property
    def _values(self) -> tuple[float, float, float, float]:
        return self.cycles, self.microseconds, self.stages, self.layers


@dataclass(frozen=True)
class LoopCosts:
    """Time of a loop for each factor by which it can be unrolled.

    Parameters
    ----------
    trips : int
        Number of iterations of the loop in the model.
    one, two : StepCost
        Costs of one step, and of two steps in one iteration; more steps cost the difference each.
    costs : HostCosts
        Time of the host for a stage, and the clock frequency of the accelerator.
    words : int
        Size of the instruction store in words.
    others : float
        Number of layers of the network outside of the loop.
    """

    trips: int
    one: StepCost
    two: StepCost
    costs: HostCosts
    words: int
    others: float = 0.0

    def steps(self, count: int) -> StepCost:
        """Return the costs of several steps that are computed without a loop."""
        if count == 0:
            return StepCost()
        more = (self.two + self.one * -1) * (count - 1)
        return StepCost(*(max(0.0, value) for value in (self.one + more)._values))

    def words_of(self, factor: int) -> float:
        """Return the estimated number of words of the programs of the loop and of its remaining steps."""
        return WORDS_PER_LAYER * (self.steps(factor).layers + self.steps(self.trips % factor).layers)

    def microseconds(self, factor: int) -> float:
        """Return the estimated time of the loop if it is unrolled by a factor."""
        count, rest = divmod(self.trips, factor)
        moves = _STAGES_OF_REST * self.costs.stage if rest else 0.0
        return self._time(factor) * count + self._time(rest) + moves + self._loading(factor, count)

    def _time(self, count: int) -> float:
        each = self.steps(count)
        return each.cycles / self.costs.clock + each.microseconds + each.stages * self.costs.stage

    def _loading(self, factor: int, count: int) -> float:
        """Return the time to load programs, in each iteration or once, if the instruction store is too small."""
        words = self.steps(factor).layers * WORDS_PER_LAYER
        if words > self.words:
            return count * words * _CYCLES_PER_WORD / self.costs.clock
        whole = self.words_of(factor) + self.others * WORDS_PER_LAYER
        return words * _CYCLES_PER_WORD / self.costs.clock if whole > self.words else 0.0

    def best(self, most: int) -> int:
        """Return the factor to choose, if loop and remaining steps have at most `most` steps in total."""
        times = {
            factor: self.microseconds(factor)
            for factor in factors(self.trips)
            if factor == 1 or _computed(self.trips, factor) <= most
        }
        limit = (1 + _TOLERANCE) * min(times.values())
        return min(
            (f for f in times if times[f] <= limit), key=lambda f: (_computed(self.trips, f), times[f])
        )

    def text(self, factor: int) -> str:
        """Describe a factor and its costs."""
        count, rest = divmod(self.trips, factor)
        if factor == 1:
            done = f"remains a loop of {count:,} iterations"
        elif factor >= self.trips:
            done = f"all {self.trips:,} iterations are unrolled"
        else:
            after = f" and {rest:,} steps after the loop" if rest else ""
            done = f"unrolled by {factor:,}: {count:,} iterations instead of {self.trips:,}{after}"
        others = [each for each in (1, self.trips) if each != factor]
        names = {1: "as a loop", self.trips: "fully unrolled"}
        than = ", ".join(f"{self.microseconds(each):,.0f} us {names[each]}" for each in others)
        return (
            f"{done}; estimated {self.microseconds(factor):,.0f} us at {self.costs.clock:g} MHz and "
            f"{self.words_of(factor):,.0f} words of programs ({than})"
        )


def _computed(trips: int, factor: int) -> int:
    """Return the number of steps whose nodes a graph contains if a loop is unrolled by a factor."""
    return factor + trips % factor


def factors(trips: int) -> list[int]:
    """Return the factors to consider: powers of two, and those that leave few iterations."""
    found = {1, trips}
    found |= {1 << power for power in range(trips.bit_length())}
    found |= {-(-trips // count) for count in range(1, 65)}
    found |= {trips // count for count in range(1, 65) if trips % count == 0}
    return sorted(each for each in found if each == trips or 1 <= each <= trips // 2)


def _size(graph: Graph) -> int:
    """Return the number of nodes of a graph and its subgraphs."""
    return sum(1 for _ in graph.walk())


class LoopUnroller:
    """Chooses factors for the loops of a quantized graph, and unrolls them; the results remain equal.

    Parameters
    ----------
    config : MlaConfig
        Hardware configuration of the target.
    rounding : "reference", "xnnpack" or "onnxruntime"
        Rounding of quantized operators.
    costs : HostCosts
        Time of the host for a stage, and the clock frequency of the accelerator.
    measure : function
        Returns the cost of a body.
    forced : mapping of str to int
        Factors that the user has specified, by name of a loop, or by "loop" for all others; 0 to unroll fully.
    chooses : bool
        True to choose factors by costs; False to unroll only loops with a forced factor.
    whole : bool
        True if loops are not possible, so that they are unrolled fully unless they have too many nodes.
    """

    def __init__(
        self,
        config: MlaConfig,
        rounding: Kernels,
        costs: HostCosts,
        measure: Callable[[Graph], StepCost],
        forced: Mapping[str, int],
        *,
        chooses: bool,
        whole: bool,
    ):
        self.rounding: Kernels = rounding
        self.config, self.costs, self.measure = config, costs, measure
        self.forced, self.chooses, self.whole = forced, chooses, whole
        self.room = MAX_UNROLLED_NODES
        self.layers = 0.0  # of the whole graph
        self.found: list[Rewritten] = []

    def run(self, graph: Graph) -> tuple[Graph, tuple[Rewritten, ...]]:
        """Return the graph with unrolled loops, and descriptions of the loops with a known number of iterations.

        Raises
        ------
        InputError
            A loop with a forced factor does not exist, has an unknown number of iterations, or becomes too large.
        """
        known = {name for each, node in graph.walk() if node.op == "loop" for name in each.names_of(node)}
        for name in self.forced:
            if name not in known:
                raise InputError(
                    f"{graph.name!r} has no loop {shown(name)} to unroll{did_you_mean(name, known)}"
                )
        self.layers = self.measure(graph).layers if known else 0.0
        made = self._unrolled(graph)
        return made, tuple(self.found)

    def _unrolled(self, graph: Graph) -> Graph:
        """Unroll the loops of a graph and of its subgraphs, innermost loops first."""
        if not any(node.bodies for node in graph):
            return graph
        bodies = {
            node.name: replace(node, bodies=tuple(self._unrolled(body) for body in node.bodies))
            for node in graph
            if node.bodies
        }
        if any(
            new is not old
            for node in bodies.values()
            for new, old in zip(node.bodies, graph.nodes[node.name].bodies, strict=True)
        ):
            graph = rebuild(graph, [bodies.get(node.name, node) for node in graph])
        chosen = {
            node.name: factor
            for node in graph
            if node.op == "loop" and (factor := self._factor(graph, node)) is not None
        }
        return trim_control(unroll_loops(graph, chosen, self.rounding)) if chosen else graph

    def _factor(self, graph: Graph, node: Node) -> int | None:
        """Return the factor by which a loop is unrolled; None if it remains as it is."""
        forced = self._forced(graph, node)
        (body,) = node.bodies
        trips = self._trips(graph, node, _size(body))
        if trips is None:
            if not self.forced.keys().isdisjoint(graph.names_of(node) - {node.op}):
                raise InputError(
                    f"loop {shown(node.name)} cannot be unrolled: its number of iterations is not known"
                )
            return None
        if forced is None and not self.chooses and not self.whole:
            return None
        bodies = [several_steps(graph, node, factor, self.rounding) for factor in (1, 2)]
        nodes = max(_size(bodies[1]) - _size(bodies[0]), 1)
        one, two = map(self.measure, bodies)
        others = max(0.0, self.layers - one.layers)
        costs = LoopCosts(trips, one, two, self.costs, self.config.wis_words, others)
        most = self.room // nodes
        if forced is not None:
            factor = min(forced or trips, trips)
            factor = trips if 2 * factor > trips else factor
            if _computed(trips, factor) * nodes > _MAX_FORCED_NODES:
                raise InputError(
                    f"loop {shown(node.name)} cannot be unrolled by {factor:,}: its {nodes:,} nodes would become "
                    f"{_computed(trips, factor) * nodes:,}; the limit is {_MAX_FORCED_NODES:,}"
                )
        else:
            factor = (trips if trips <= most else 1) if self.whole else costs.best(most)
        self.layers += costs.words_of(factor) / WORDS_PER_LAYER - one.layers
        if factor > 1:
            self.room = max(0, self.room - _computed(trips, factor) * nodes)
        self.found.append(Rewritten(node.name, node.op, "unroll_loops", costs.text(factor)))
        return factor

    def _forced(self, graph: Graph, node: Node) -> int | None:
        names = sorted(graph.names_of(node), key=lambda name: name == node.op)
        return next((self.forced[name] for name in names if name in self.forced), None)

    def _trips(self, graph: Graph, node: Node, nodes: int) -> int | None:
        """Return the number of iterations of a loop that runs without error; None if it is unknown or 1."""
        operands = [tensor.data for tensor in graph.ins(node)]
        trips = known_trips(node, operands, min(MAX_ITERATIONS, _MAX_VISITED // max(nodes, 1) + 2))
        if trips is None or trips < 2:
            return None
        states = node.attributes["states"]
        scanned = graph.ins(node)[2 + states : 2 + states + len(node.attributes["scanned"])]
        stacks = [graph.tensors[name] for name in node.outputs[states:]]
        fits = all(each.shape[0] == trips for each in stacks) and all(
            each.shape[0] >= trips for each in scanned
        )
        return trips if fits else None
