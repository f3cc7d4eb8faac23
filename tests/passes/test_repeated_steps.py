"""Repeated steps of quantized graphs become loops with equal results, which are unrolled by any factor."""

from dataclasses import replace

import numpy as np
import onnx
import pytest

from compiler.api import compile
from compiler.frontends.onnx import read_onnx
from compiler.ir.graph import Graph, Node, rebuild
from compiler.options import CompileOptions
from compiler.passes.repeated_steps import with_loops
from compiler.pipeline import CompilationTrace, ModelCompiler
from compiler.reference import evaluate
from hw.config import load_target
from tests.support.control_graphs import MEANING, row, rows, unrolled
from tests.support.onnx_models import model, node

GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}


def recurrent(seed: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray], int]:
    """Return a model of two recurrent layers of random sizes, its input and the number of time steps."""
    rng = np.random.default_rng(seed)
    op, direction = list(GATES)[seed % 3], ["forward", "reverse", "bidirectional"][seed // 3 % 3]
    count, gates = 1 + (direction == "bidirectional"), GATES[op]
    steps, hidden, batch = int(rng.integers(8, 40)), int(rng.integers(2, 9)), int(rng.integers(1, 3))
    print(f"seed {seed}: {op} {direction}, {steps} steps, batch {batch}, {hidden} hidden")

    def draw(*shape: int) -> np.ndarray:
        return (0.4 * rng.standard_normal(shape)).astype(np.float32)

    x = {"x": draw(steps, batch, 4)}
    weights = {
        "w": draw(count, gates * hidden, 4),
        "r": draw(count, gates * hidden, hidden),
        "b": draw(count, 2 * gates * hidden),
        "w2": draw(1, gates * hidden, count * hidden),
        "r2": draw(1, gates * hidden, hidden),
        "shape": np.array([steps, batch, count * hidden]),
    }
    nodes = [
        node(op, "x w r b", "y h", hidden_size=hidden, direction=direction),
        node("Transpose", "y", "yt", perm=[0, 2, 1, 3]),
        node("Reshape", "yt shape", "z"),
        node(op, "z w2 r2", "y2 h2", hidden_size=hidden),
    ]
    return model(nodes, x, ["y2", "h", "h2"], weights), x, steps


def quantized(made: onnx.ModelProto, x: dict[str, np.ndarray]) -> Graph:
    """Return the quantized graph of a model."""
    record = CompilationTrace()
    options = CompileOptions(rounding="onnxruntime", calibration=[x], disable=("unroll_loops",))
    ModelCompiler(read_onnx(made), load_target("n4"), options, record)
    return record.graphs["quantized"]


@pytest.mark.random_cases("seed")
@pytest.mark.parametrize("seed", range(9))
def test_recurrent_layers_become_loops(seed: int) -> None:
    """All directions and operators: the results of the loops, unrolled by any factor, equal those of the steps."""
    made, x, steps = recurrent(seed)
    graph = quantized(made, x)
    found = with_loops(graph, 20)
    loops = [each for each in found if each.op == "loop"]
    assert len(loops) == 2 + (seed // 3 % 3 == 2) and len(found.nodes) < len(graph.nodes) / 2
    for each in loops:
        trips = found.tensors[each.inputs[1]].data
        assert trips is not None and steps - 2 <= trips < steps  # the first step has no state
    assert with_loops(graph, 10_000) is graph
    wanted = evaluate(graph, x, rounding="onnxruntime")
    for factor in (None, 1, 2, 5, 0):
        again = found if factor is None else unrolled(found, factor, "onnxruntime")
        got = evaluate(again, x, rounding="onnxruntime")
        assert all(np.array_equal(got[name], wanted[name]) for name in wanted), factor


def test_steps_that_fill_the_instruction_store_run_as_a_loop() -> None:
    """On the golden model, the outputs equal those without the pass; the report states the costs."""
    x = {"x": np.random.default_rng(0).standard_normal((14, 1, 4)).astype(np.float32)}
    weights = {"w": np.ones((1, 12, 4), np.float32) / 4, "r": np.ones((1, 12, 4), np.float32) / 8}
    graph = read_onnx(model([node("GRU", "x w r", "y h", hidden_size=4)], x, ["y", "h"], weights))
    network = compile(graph, "n4", calibration=[x])
    before = compile(graph, "n4", calibration=[x], disable=["unroll_loops"])
    assert {each.name for each in network.rewritten} == {"unroll_loops"} and not before.rewritten
    assert "loop" in {each.op for each in network.host} and "loop" not in {each.op for each in before.host}
    assert sum(len(p.words) for code in network.codes for p in code.programs) < sum(
        len(p.words) for code in before.codes for p in code.programs
    )
    found, wanted = network(**x), before(**x)
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
    assert "loop" not in {each.op for each in compile(graph, "n4", calibration=[x], strict=True).host}


def chain(count: int, *, sign: int = 1) -> Graph:
    """Return a graph with steps s' = (s + x[t]) * s, of which all first sums are joined."""
    graph = Graph("chain")
    for tensor in (row("s"), row("x", count)):
        graph.add_input(tensor)
    state, sums = "s", []
    for number in range(count):
        t = number if sign > 0 else count - 1 - number
        for name in (f"r{t}", f"a{t}", f"b{t}"):
            graph.add_tensor(replace(row(name), shape=(1, 1, 16)))
        spans = {"starts": (t, 0, 0), "sizes": (1, 1, 16), "steps": (1, 1, 1)}
        graph.add_node(Node(f"row:{t}:", "slice", ("x",), (f"r{t}",), spans))
        graph.add_node(Node(f"sum:{t}:", "add", (f"r{t}", state), (f"a{t}",)))
        graph.add_node(Node(f"product:{t}:", "mul", (f"a{t}", state), (f"b{t}",)))
        state = f"b{t}"
        sums.append(f"a{t}")
    graph.add_tensor(row("y", count))
    graph.add_node(Node("join", "concat", tuple(sums[::sign]), ("y",), {"axis": 0}))
    return graph.finish(["y", state])


@pytest.mark.parametrize("sign", [1, -1])
def test_steps_in_both_directions(sign: int) -> None:
    graph, inputs = chain(12, sign=sign), rows(3, s=0, x=12)
    found = with_loops(graph, 0)
    assert sum(each.op == "loop" for each in found) == 1 and len(found.nodes) < 12
    wanted, got = evaluate(graph, inputs), evaluate(found, inputs)
    assert all(np.array_equal(got[name], wanted[name]) for name in wanted)


def test_steps_that_differ_do_not_become_a_loop() -> None:
    """A result of the last step but one, other constants, or an output of the model inside of the steps prevent it."""
    graph = chain(12)
    older = [
        replace(each, inputs=(each.inputs[0], f"a{number // 3 - 2}"))
        if each.op == "mul" and number > 6
        else each
        for number, each in enumerate(graph)
    ]
    factors = [
        replace(each, inputs=(each.inputs[0], f"w{number}")) if each.op == "mul" else each
        for number, each in enumerate(graph)
    ]
    weights = {
        f"w{number}": replace(
            row(f"w{number}"),
            shape=(1, 1, 16),
            data=np.full((1, 1, 16), number, np.int8),
            quantization=MEANING,
        )
        for number in range(len(graph.nodes))
    }
    for changed in (
        rebuild(graph, older),
        rebuild(graph, factors, changed=weights),
        rebuild(graph, graph, outputs=[*graph.outputs, "a5", "b5"]),
    ):
        found = with_loops(changed, 0)
        inputs = rows(4, s=0, x=12)
        wanted, got = evaluate(changed, inputs), evaluate(found, inputs)
        assert all(np.array_equal(got[name], wanted[name]) for name in wanted)
        trips = [found.tensors[each.inputs[1]].data for each in found if each.op == "loop"]
        assert max((int(each) for each in trips if each is not None), default=0) < 8
