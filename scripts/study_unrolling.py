"""Measures recurrent networks with loops that are unrolled by several factors, as docs/control_flow.md shows.

For each factor, the table lists the cycles on the simulated chip, those of loading programs, the stages that the host
starts, the words of the programs, and the seconds of compilation; the time assumes 100 MHz and 50 microseconds of the
host for each stage. Run it with `python -m scripts.study_unrolling gru:64 gru:100 scan:100`.
"""

import argparse
import time

import numpy as np
import onnx
from onnx import helper, numpy_helper

import compiler
from compiler.frontends.onnx import read_onnx
from compiler.options import DEFAULT_HOST_COSTS
from compiler.util.tables import Column, figures, format_table

#: Elements of an input of a time step, and of a state.
_SIZE, _HIDDEN = 40, 64
_GATES = {"gru": 3, "lstm": 4, "rnn": 1}


def network(kind: str, steps: int, rng: np.random.Generator) -> tuple[onnx.ModelProto, np.ndarray]:
    """Return a recurrent layer of a number of time steps, or a Scan of tanh(W (x, h)) for kind scan, and an input."""
    x = rng.standard_normal((steps, 1, _SIZE)).astype(np.float32)
    given = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)

    def draw(*shape: int) -> np.ndarray:
        return (0.15 * rng.standard_normal(shape)).astype(np.float32)

    if kind == "scan":
        floats = onnx.TensorProto.FLOAT
        weights = {"w": draw(_SIZE + _HIDDEN, _HIDDEN), "h0": np.zeros((1, _HIDDEN), np.float32)}
        body = helper.make_graph(
            [
                helper.make_node("Concat", ["row", "h"], ["joined"], axis=1),
                helper.make_node("MatMul", ["joined", "w"], ["sum"]),
                helper.make_node("Tanh", ["sum"], ["next"]),
                helper.make_node("Identity", ["next"], ["out"]),
            ],
            "step",
            [
                helper.make_tensor_value_info("h", floats, (1, _HIDDEN)),
                helper.make_tensor_value_info("row", floats, (1, _SIZE)),
            ],
            [
                helper.make_tensor_value_info("next", floats, (1, _HIDDEN)),
                helper.make_tensor_value_info("out", floats, (1, _HIDDEN)),
            ],
        )
        node = helper.make_node("Scan", ["h0", "x"], ["last", "y"], body=body, num_scan_inputs=1)
    else:
        rows = _GATES[kind] * _HIDDEN
        weights = {"w": draw(1, rows, _SIZE), "r": draw(1, rows, _HIDDEN), "b": draw(1, 2 * rows)}
        node = helper.make_node(
            kind.upper(), ["x", "w", "r", "b"], ["y", "last"], hidden_size=_HIDDEN, name=kind
        )
    outputs = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in ("y", "last")]
    constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph([node], kind, [given], outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), x


def main() -> None:
    """Measure the cases that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "cases", nargs="+", help="gru, lstm, rnn or scan, and the number of steps, such as gru:64"
    )
    parser.add_argument("--target", default="n16")
    parser.add_argument(
        "--factors", default="chosen,1,full", help="factors to measure: numbers, full or chosen"
    )
    args = parser.parse_args()
    rows: list[list[str]] = []
    for case in args.cases:
        kind, _, steps = case.partition(":")
        made, x = network(kind, int(steps), np.random.default_rng(0))
        graph = read_onnx(made)
        wanted = None
        for factor in args.factors.split(","):
            # Without the pass, recurrent operators remain unrolled.
            unrolled = factor == "full" and kind != "scan"
            started = time.monotonic()
            made_network = compiler.compile(
                graph,
                args.target,
                calibration=[{"x": x}],
                cache=False,
                database=False,
                disable=["unroll_loops"] if unrolled else [],
                unroll=None if unrolled or factor == "chosen" else 0 if factor == "full" else int(factor),
            )
            seconds = time.monotonic() - started
            with compiler.open_device(made_network, "rtl") as device:
                session = compiler.Session(device, made_network)
                session.measure({"x": x})
                loads = session.load_cycles  # programs that do not stay loaded are loaded again
                outputs, cycles = session.measure({"x": x})
            wanted = outputs if wanted is None else wanted
            assert all(np.array_equal(outputs[name], wanted[name]) for name in wanted)
            loads, stages = session.load_cycles - loads, sum(session.runs) // 2
            words = sum(len(program.words) for code in made_network.codes for program in code.programs)
            costs = DEFAULT_HOST_COSTS
            total = (cycles + loads) / costs.clock + stages * costs.stage
            row = [case, factor, *(f"{each:,}" for each in (cycles, loads, stages, words))]
            rows.append([*row, f"{total:,.0f}", f"{seconds:.1f}"])
            print(" ".join(rows[-1]), *map(str, made_network.rewritten), flush=True)
    heads = figures("cycles", "loading", "stages", "words", "us", "compile s")
    print(format_table([Column("case"), Column("factor"), *heads], rows))


if __name__ == "__main__":
    main()
