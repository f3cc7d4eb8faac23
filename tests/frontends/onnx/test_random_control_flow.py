"""Random programs of nested branches, loops and scans give the same results as onnxruntime."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from compiler.passes import simplify
from tests.support.control_models import BOOL, FLOAT, INTEGER, integer, subgraph
from tests.support.onnx_models import check, evaluated, model, node, reference

SHAPE = (2, 3)


class Program:
    """Generator of random statements on values of one shape; each may read values of its own or an enclosing scope."""

    def __init__(self, seed: int):
        self.rng, self.count = np.random.default_rng(seed), 0
        self.constants = {
            "half": np.array(0.5, np.float32),
            "limit": np.array(0.3, np.float32),
            "true": np.array(True),
            **{f"n{trips}": integer(trips) for trips in (0, 1, 3, 35)},
        }

    def name(self) -> str:
        """Return a new name."""
        self.count += 1
        return f"v{self.count}"

    def pick(self, scope: list[str]) -> str:
        """Return a random value of the scope, preferably a new one."""
        return scope[-1 - min(int(self.rng.geometric(0.4)) - 1, len(scope) - 1)]

    def block(self, scope: list[str], depth: int) -> tuple[list[onnx.NodeProto], list[str]]:
        """Return a few statements and the scope after them."""
        nodes, scope = list[onnx.NodeProto](), list(scope)
        for _ in range(int(self.rng.integers(1, 4))):
            kinds = [self.compute, self.compute, self.branch, self.loop, self.scan]
            made, name = kinds[int(self.rng.integers(len(kinds) if depth else 2))](scope, depth)
            nodes += made
            scope.append(name)
        return nodes, scope

    def compute(self, scope: list[str], depth: int) -> tuple[list[onnx.NodeProto], str]:
        """Return an operator whose result is bounded."""
        op, name, total = (
            str(self.rng.choice(["Add", "Sub", "Mul", "Tanh", "Relu"])),
            self.name(),
            self.name(),
        )
        operands = " ".join(self.pick(scope) for _ in range(1 if op in ("Tanh", "Relu") else 2))
        return [node(op, operands, total), node("Tanh", total, name)], name

    def comparison(self, scope: list[str]) -> tuple[list[onnx.NodeProto], str]:
        """Return a comparison with a random value."""
        total, name = self.name(), self.name()
        op = str(self.rng.choice(["Less", "Greater", "LessOrEqual", "GreaterOrEqual"]))
        return [
            node("ReduceMean", self.pick(scope), total, keepdims=0),
            node(op, f"{total} limit", name),
        ], name

    def branch(self, scope: list[str], depth: int) -> tuple[list[onnx.NodeProto], str]:
        """Return an If with two random branches, and the name of its output."""
        before, test = self.comparison(scope)
        if self.rng.random() < 0.2:
            before, test = [], "true"
        parts = {}
        for key in ("then_branch", "else_branch"):
            nodes, inner = self.block(scope, depth - 1)
            last = self.name()
            parts[key] = subgraph([*nodes, node("Identity", inner[-1], last)], [], [(last, FLOAT)])
        name = self.name()
        return [*before, node("If", test, name, **parts)], name

    def loop(self, scope: list[str], depth: int) -> tuple[list[onnx.NodeProto], str]:
        """Return a Loop with one state and a condition that may end it early, and the name of its output."""
        number, going, state, last, done, name = (self.name() for _ in range(6))
        nodes, inner = self.block([*scope, state], depth - 1)
        after, test = self.comparison(inner) if self.rng.random() < 0.5 else ([], going)
        body = subgraph(
            [*nodes, *after, node("Identity", test, done), node("Identity", inner[-1], last)],
            [(number, INTEGER), (going, BOOL), (state, FLOAT)],
            [(done, BOOL), (last, FLOAT)],
        )
        trips = f"n{self.rng.choice([0, 1, 3, 35])}"
        return [node("Loop", f"{trips} true {self.pick(scope)}", name, body=body)], name

    def scan(self, scope: list[str], depth: int) -> tuple[list[onnx.NodeProto], str]:
        """Return a Scan over columns in a random direction; its stacked output has the shape of its input."""
        state, column, last, made, kept, name = (self.name() for _ in range(6))
        bent, ways = self.name(), [int(way) for way in self.rng.integers(0, 2, 2)]
        body = subgraph(
            [
                node("Add", f"{state} {column}", bent),
                node("Tanh", bent, last),
                node("Mul", f"{last} half", made),
            ],
            [(state, FLOAT), (column, FLOAT)],
            [(last, FLOAT), (made, FLOAT)],
            SHAPE[:1],
        )
        first, source = self.name(), self.pick(scope)
        return [
            node("ReduceMean", self.pick(scope), first, axes=[1], keepdims=0),
            node(
                "Scan",
                f"{first} {source}",
                f"{kept} {name}",
                body=body,
                num_scan_inputs=1,
                scan_input_axes=[1],
                scan_output_axes=[1],
                scan_input_directions=ways[:1],
                scan_output_directions=ways[1:],
            ),
        ], name


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_equal_onnxruntime(tmp_path: Path, seed: int) -> None:
    program = Program(seed)
    nodes, scope = program.block(["x", "w"], 3)
    samples = [
        {name: program.rng.standard_normal(SHAPE).astype(np.float32) for name in ("x", "w")} for _ in range(4)
    ]
    made = model(nodes, samples[0], [scope[-1]], program.constants)
    graph = simplify(check(tmp_path, made, samples[0], tolerance=1e-4))
    for sample in samples:
        got, wanted = evaluated(graph, sample), reference(made, sample)
        np.testing.assert_allclose(
            got[scope[-1]], wanted[scope[-1]], rtol=0, atol=1e-4, err_msg=f"seed {seed}"
        )
