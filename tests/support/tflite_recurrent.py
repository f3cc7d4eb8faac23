"""TFLite files of recurrent operators with random weights and quantizations, and runs of LiteRT over many samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from tests.support.one_operator import RESOLVERS, options
from tests.support.tflite_graphs import FileGraph, Operator, packed


def steps_in_litert(data: bytes, samples: Sequence[np.ndarray], rounding: str) -> list[list[np.ndarray]]:
    """Invoke LiteRT on samples in turn, with its state carried over, and return the outputs of each."""
    interpreter = Interpreter(
        model_content=data, experimental_op_resolver_type=RESOLVERS[rounding], num_threads=1
    )
    interpreter.allocate_tensors()
    (given,), out = interpreter.get_input_details(), []
    for sample in samples:
        interpreter.set_tensor(given["index"], sample)
        interpreter.invoke()
        out.append([interpreter.get_tensor(each["index"]) for each in interpreter.get_output_details()])
    return out


@dataclass(frozen=True)
class LstmKind:
    """Optional parts of an LSTM: coupled input gate, peepholes, projection, layer normalization, and clipping."""

    cifg: bool = False
    peephole: bool = False
    projection: bool = False
    norm: bool = False
    clip: bool = False
    time_major: bool = False


def random_kind(rng: np.random.Generator) -> LstmKind:
    """Return a random combination of optional parts."""
    return LstmKind(*(bool(flag) for flag in rng.integers(0, 2, 6)))


GATES = ("input", "forget", "cell", "output")


def lstm(
    rng: np.random.Generator,
    kind: LstmKind,
    dtype: str = "int8",
    steps: int | None = None,
    sizes: tuple[int, int, int] | None = None,
) -> bytes:
    """Return a file with a UNIDIRECTIONAL_SEQUENCE_LSTM of type int8 or float32.

    Without `steps` and without `sizes` (batch, inputs, cells), these are random.
    """
    batch, inputs, cells = sizes or (int(n) for n in rng.integers((1, 1, 1), (4, 20, 20)))
    steps = int(rng.integers(1, 6)) if steps is None else steps
    made = int(rng.integers(1, (cells if kind.peephole else 12) + 1)) if kind.projection else cells
    whole = dtype == "int8"
    tensors: dict[str, Any] = {}
    meaning: dict[str, Any] = {}

    def scale(low: float, high: float) -> float:
        return float(np.float32(np.exp(rng.uniform(np.log(low), np.log(high)))))

    def add(name: str, shape: tuple[int, ...], wanted: str, *quantization: Any) -> str:
        tensors[name] = (shape, wanted if whole else "float32")
        if whole and quantization:
            meaning[name] = quantization
        return name

    def constant(
        name: str, shape: tuple[int, ...], wanted: str, size: int, real: float, *quantization: Any
    ) -> str:
        if whole:
            tensors[name] = rng.integers(-size, size + 1, shape).astype(wanted)
            meaning[name] = quantization
        else:
            tensors[name] = rng.normal(0, real, shape).astype(np.float32)
        return name

    sequence = (steps, batch) if kind.time_major else (batch, steps)
    x = add("x", (*sequence, inputs), "int8", scale(0.005, 0.05), int(rng.integers(-128, 128)))
    hidden = (scale(0.003, 0.01), int(rng.integers(-40, 40)))
    output = (scale(0.003, 0.02), int(rng.integers(-40, 40))) if kind.projection else hidden
    gates = [gate for gate in GATES if not (kind.cifg and gate == "input")]
    names = dict.fromkeys(range(24), "")
    names[0] = x
    for number, gate in enumerate(GATES):
        if gate not in gates:
            continue
        names[1 + number] = constant(f"w_{gate}", (cells, inputs), "int8", 127, 0.4, scale(0.002, 0.01), 0)
        names[5 + number] = constant(f"r_{gate}", (cells, made), "int8", 127, 0.4, scale(0.002, 0.01), 0)
        bias_scale = 2.0**-20 if kind.norm else 2.0**-12
        names[12 + number] = constant(f"b_{gate}", (cells,), "int32", 4000, 0.3, bias_scale, 0)
        if kind.peephole and gate != "cell":
            places = {"input": 9, "forget": 10, "output": 11}
            names[places[gate]] = constant(f"p_{gate}", (cells,), "int16", 32767, 0.3, scale(1e-5, 5e-5), 0)
        if kind.norm:
            names[20 + number] = constant(f"n_{gate}", (cells,), "int16", 32767, 0.5, scale(1e-5, 1e-4), 0)
    if kind.projection:
        names[16] = constant("projection", (made, cells), "int8", 127, 0.4, scale(0.002, 0.01), 0)
        if rng.integers(2):
            names[17] = constant("projection_bias", (made,), "int32", 3000, 0.2, hidden[0] * 0.004, 0)
    names[18] = add("hidden_state", (batch, made), "int8", *output)
    names[19] = add("cell_state", (batch, cells), "int16", 2.0 ** -int(rng.integers(9, 14)), 0)
    y = add("y", (*sequence, made), "int8", *output)
    between = []
    if whole:
        for gate in GATES:
            between.append(add(f"between_{gate}", (1,), "int16", scale(1e-4, 1e-3), 0))
        between.append(add("between_hidden", (1,), "int8", *hidden))
    settings = options(
        "UnidirectionalSequenceLSTM",
        fusedActivationFunction=4,
        cellClip=float(rng.uniform(0.5, 3)) if kind.clip else 0.0,
        projClip=float(rng.uniform(0.2, 1)) if kind.clip else 0.0,
        timeMajor=kind.time_major,
        asymmetricQuantizeInputs=False,
    )
    count = 24 if kind.norm else 20
    operator = Operator(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", [names[i] for i in range(count)], [y], settings, 1, between
    )
    return packed([FileGraph(tensors, [operator], [x], [y], meaning, ["hidden_state", "cell_state"])])


def svdf(rng: np.random.Generator, dtype: str = "int8", activation: int = 0, layers: int = 1) -> bytes:
    """Return a file with a chain of SVDF operators of type int8 or float32."""
    whole = dtype == "int8"
    tensors: dict[str, Any] = {}
    meaning: dict[str, Any] = {}
    operators, variables = [], []

    def scale(low: float, high: float) -> float:
        return float(np.float32(np.exp(rng.uniform(np.log(low), np.log(high)))))

    def add(name: str, shape: tuple[int, ...], wanted: str, *quantization: Any) -> str:
        tensors[name] = (shape, wanted if whole else "float32")
        if whole:
            meaning[name] = quantization
        return name

    def constant(name: str, shape: tuple[int, ...], wanted: str, size: int, *quantization: Any) -> str:
        if whole:
            tensors[name] = rng.integers(-size, size + 1, shape).astype(wanted)
            meaning[name] = quantization
        else:
            tensors[name] = rng.normal(0, 0.4, shape).astype(np.float32)
        return name

    batch, size = (int(n) for n in rng.integers((1, 1), (4, 20)))
    x = add("x", (batch, size), "int8", scale(0.01, 0.1), int(rng.integers(-128, 128)))
    for number in range(layers):
        units, rank, memory = (int(n) for n in rng.integers((1, 1, 1), (10, 4, 12)))
        filters, state_scale, time_scale = units * rank, scale(1e-4, 1e-3), scale(1e-5, 1e-4)
        feature = constant(f"feature{number}", (filters, size), "int8", 127, scale(0.002, 0.01), 0)
        time = constant(f"time{number}", (filters, memory), "int16", 32767, time_scale, 0)
        bias = constant(f"bias{number}", (units,), "int32", 100000, state_scale * time_scale, 0)
        state = add(f"state{number}", (batch, memory * filters), "int16", state_scale, 0)
        largest = state_scale * time_scale * 32767 * 15000 * (memory * rank) ** 0.5
        y = add(f"y{number}", (batch, units), "int8", largest / 100, int(rng.integers(-100, 100)))
        settings = options(
            "SVDF", rank=rank, fusedActivationFunction=activation, asymmetricQuantizeInputs=False
        )
        held = bias if rng.integers(4) else ""
        operators.append(Operator("SVDF", [x, feature, time, held, state], [y], settings, 3 if whole else 1))
        variables.append(state)
        x, size = y, units
    return packed([FileGraph(tensors, operators, ["x"], [x], meaning, variables)])


def rnn(rng: np.random.Generator, kind: str, *, time_major: bool = False, merge: bool = False) -> bytes:
    """Return a file with a float RNN, UNIDIRECTIONAL_SEQUENCE_RNN or BIDIRECTIONAL_SEQUENCE_RNN."""
    batch, steps, size, units = (int(n) for n in rng.integers((1, 1, 1, 1), (4, 6, 12, 12)))
    tensors: dict[str, Any] = {}
    single, both = kind == "RNN", kind.startswith("BIDIRECTIONAL")
    lead = (batch,) if single else (steps, batch) if time_major else (batch, steps)
    tensors["x"] = ((*lead, size), "float32")
    names, states = ["x"], []
    for direction in ("fw", "bw") if both else ("fw",):
        for part, shape in (("w", (units, size)), ("r", (units, units)), ("b", (units,))):
            tensors[f"{direction}_{part}"] = rng.normal(0, 0.4, shape).astype(np.float32)
            names.append(f"{direction}_{part}")
        tensors[f"{direction}_h"] = ((batch, units), "float32")
        names.append(f"{direction}_h")
        states.append(f"{direction}_h")
    made = ["y"] if merge or not both else ["y", "z"]
    for name in made:
        tensors[name] = ((*lead, units * (2 if merge else 1)), "float32")
    activation: dict[str, Any] = {"fusedActivationFunction": int(rng.choice([1, 4]))}
    if not single:
        activation["timeMajor"] = time_major
    if both:
        activation["mergeOutputs"] = merge
        names += [""] * 3
    option = "RNN" if single else "BidirectionalSequenceRNN" if both else "SequenceRNN"
    operator = Operator(kind, names, made, options(option, **activation, asymmetricQuantizeInputs=False))
    return packed([FileGraph(tensors, [operator], ["x"], made, {}, states)])


def bidirectional_lstm(rng: np.random.Generator, *, time_major: bool = False, merge: bool = False) -> bytes:
    """Return a file with a float BIDIRECTIONAL_SEQUENCE_LSTM."""
    batch, steps, size, cells = (int(n) for n in rng.integers((1, 1, 1, 1), (4, 6, 12, 12)))
    if merge and not time_major:
        batch = 1  # LiteRT leaves parts of merged outputs undefined if there are several batches
    tensors: dict[str, Any] = {}
    lead = (steps, batch) if time_major else (batch, steps)
    tensors["x"] = ((*lead, size), "float32")
    names = dict.fromkeys(range(48), "") | {0: "x"}
    for first in (1, 18):
        for offset, shape in ((0, (cells, size)), (4, (cells, cells)), (11, (cells,))):
            for gate in range(4):
                name = names[first + offset + gate] = f"c{first + offset + gate}"
                tensors[name] = rng.normal(0, 0.4, shape).astype(np.float32)
    states = []
    for index in range(35, 39):
        names[index] = f"state{index}"
        tensors[names[index]] = ((batch, cells), "float32")
        states.append(names[index])
    made = ["y"] if merge else ["y", "z"]
    for name in made:
        tensors[name] = ((*lead, cells * (2 if merge else 1)), "float32")
    settings = options(
        "BidirectionalSequenceLSTM",
        fusedActivationFunction=4,
        cellClip=0.0,
        projClip=0.0,
        mergeOutputs=merge,
        timeMajor=time_major,
        asymmetricQuantizeInputs=False,
    )
    operator = Operator("BIDIRECTIONAL_SEQUENCE_LSTM", [names[i] for i in range(48)], made, settings)
    return packed([FileGraph(tensors, [operator], ["x"], made, {}, states)])


def counter(initial: bool = True) -> bytes:
    """Return a file that adds its input to a resource variable, which starts at 5 if `initial` is set."""
    handle = Operator("VAR_HANDLE", [], ["h"], options("VarHandle", container="", sharedName="total"))
    tensors: dict[str, Any] = {"h": ((), "resource"), "c": np.full((1, 4), 5, np.float32)}
    start = FileGraph(
        tensors, [handle, Operator("ASSIGN_VARIABLE", ["h", "c"], [], options("AssignVariable"))], [], []
    )
    shape = ((1, 4), "float32")
    tensors = {"x": shape, "h": ((), "resource"), "before": shape, "after": shape}
    operators = [
        handle,
        Operator("READ_VARIABLE", ["h"], ["before"], options("ReadVariable")),
        Operator(
            "ADD", ["before", "x"], ["after"], options("Add", fusedActivationFunction=0, potScaleInt16=False)
        ),
        Operator("ASSIGN_VARIABLE", ["h", "after"], [], options("AssignVariable")),
    ]
    if initial:
        operators.insert(0, Operator("CALL_ONCE", [], [], options("CallOnce", initSubgraphIndex=1)))
    return packed([FileGraph(tensors, operators, ["x"], ["after"]), *([start] if initial else [])])


def streaming_filter(rng: np.random.Generator, layers: int = 2) -> bytes:
    """Return a file of int8 dense layers over the last steps of their inputs, which resource variables hold."""
    size, tensors, operators, initial = int(rng.integers(4, 20)), {}, [], []
    meaning: dict[str, Any] = {"x": (0.05, int(rng.integers(-20, 20)))}
    start: dict[str, Any] = {}
    tensors["x"], x = ((1, 1, size), "int8"), "x"
    for i in range(layers):
        memory, units = int(rng.integers(2, 6)), int(rng.integers(4, 20))
        handle = Operator(
            "VAR_HANDLE", [], [f"h{i}"], options("VarHandle", container="", sharedName=f"memory{i}")
        )
        tensors[f"h{i}"] = start[f"h{i}"] = ((), "resource")
        for name, steps in (("old", memory), ("all", memory + 1), ("new", memory)):
            tensors[f"{name}{i}"], meaning[f"{name}{i}"] = ((1, steps, size), "int8"), meaning[x]
        for name, value in (("first", [0, 1, 0]), ("last", [1, memory + 1, size]), ("step", [1, 1, 1])):
            tensors[f"{name}{i}"] = np.array(value, np.int32)
        tensors[f"w{i}"] = rng.integers(-127, 128, (units, (memory + 1) * size)).astype(np.int8)
        meaning[f"w{i}"] = (0.01, 0)
        tensors[f"y{i}"], meaning[f"y{i}"] = ((1, 1, units), "int8"), (0.1, int(rng.integers(-20, 20)))
        tensors[f"f{i}"], meaning[f"f{i}"] = ((1, units), "int8"), meaning[f"y{i}"]
        tensors[f"s{i}"] = np.array([1, 1, units], np.int32)
        cut = options(
            "StridedSlice",
            beginMask=0,
            endMask=0,
            ellipsisMask=0,
            newAxisMask=0,
            shrinkAxisMask=0,
            offset=False,
        )
        flat = options("FullyConnected", fusedActivationFunction=0, keepNumDims=False)
        operators += [
            handle,
            Operator("READ_VARIABLE", [f"h{i}"], [f"old{i}"], options("ReadVariable")),
            Operator("CONCATENATION", [f"old{i}", x], [f"all{i}"], options("Concatenation", axis=1), 2),
            Operator(
                "STRIDED_SLICE", [f"{n}{i}" for n in ("all", "first", "last", "step")], [f"new{i}"], cut, 2
            ),
            Operator("ASSIGN_VARIABLE", [f"h{i}", f"new{i}"], [], options("AssignVariable")),
            Operator("FULLY_CONNECTED", [f"all{i}", f"w{i}", ""], [f"f{i}"], flat, 4),
            Operator("RESHAPE", [f"f{i}", f"s{i}"], [f"y{i}"], options("Reshape", newShape=[1, 1, units])),
        ]
        start[f"c{i}"] = np.full((1, memory, size), meaning[x][1], np.int8)
        initial += [handle, Operator("ASSIGN_VARIABLE", [f"h{i}", f"c{i}"], [], options("AssignVariable"))]
        x, size = f"y{i}", units
    operators.insert(0, Operator("CALL_ONCE", [], [], options("CallOnce", initSubgraphIndex=1)))
    return packed([FileGraph(tensors, operators, ["x"], [x], meaning), FileGraph(start, initial, [], [])])
