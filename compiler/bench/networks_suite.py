"""Suites `nets` (published architectures), `blocks` (of networks) and `conditions` (other machines and batch sizes)."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from compiler.bench import tiny
from compiler.bench.architectures import NETWORKS, model_file
from compiler.bench.case import Case, Work, run_case
from compiler.bench.float_networks import BLOCKS
from compiler.bench.single_layer import conv_case, gemm_case, node_model
from compiler.frontends.model import read_model
from compiler.ir.graph import Graph
from compiler.options import DramTiming
from compiler.passes import simplify
from compiler.quantize import quantize
from compiler.quantize.ranges import random_samples
from compiler.reference import evaluate
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.device import open_device
from cosim.device import Device
from hw.config import DEFAULT_TARGET, load_target, targets_by_lanes
from hw.errors import InputError, WorkError, shown

CASES, BLOCK_CASES = tuple(NETWORKS), tuple(BLOCKS)
_ROUNDING = "onnxruntime"
#: Allowed difference from onnxruntime in units in the last place; operators that ONNX defines in floating point round
#: twice.
_LAST_PLACE, _FLOAT = 1, 2
_FLOAT_OPS = ("softmax", "layer_norm", "gelu", "sigmoid", "tanh", "exp")


def nets_case(name: str) -> Case:
    """Return the case for the name of a network.

    Raises
    ------
    InputError
        The network is unknown.
    """
    if name not in NETWORKS:
        raise InputError(f"a nets case must be one of {', '.join(NETWORKS)}, not {shown(name)}")
    return Case(name, "golden model; onnxruntime by operator", lambda rng: _work(name, rng), _ROUNDING)


def blocks_case(name: str) -> Case:
    """Return the case for the name of a block.

    Raises
    ------
    InputError
        The block is unknown.
    """
    if name not in BLOCKS:
        raise InputError(f"a blocks case must be one of {', '.join(BLOCKS)}, not {shown(name)}")
    return Case(name, "golden model", lambda rng: _block(name, rng))


def _block(name: str, rng: np.random.Generator) -> Work:
    """Return a block that is quantized with two samples, and the first of them."""
    network = BLOCKS[name]()
    assert isinstance(network.model, ModelProto)
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        path.write_bytes(network.model.SerializeToString())
        graph = simplify(read_model(path))
    samples = [{graph.inputs[0]: each[None]} for each in network.samples(rng, 2)]
    return Work(simplify(quantize(graph, samples)[0]), samples[0], None)


def _work(name: str, rng: np.random.Generator) -> Work:
    graph = simplify(read_model(model_file(name)))
    quantized, _ = quantize(graph, random_samples(graph, int(rng.integers(1 << 31)), 1), rounding=_ROUNDING)
    quantized = simplify(quantized)
    (inputs,) = random_samples(graph, int(rng.integers(1 << 31)), 1)
    values = evaluate(quantized, inputs, rounding=_ROUNDING, keep=True)
    return Work(quantized, inputs, None, apart=_apart(quantized, values))


def _apart(graph: Graph, values: Mapping[str, NDArray]) -> int:
    """Return the largest difference between a layer's outputs and onnxruntime's, in units in the last place.

    Raises
    ------
    WorkError
        The difference exceeds the bound, or onnxruntime is not installed.
    """
    try:
        from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions
    except ImportError:
        raise WorkError(
            "onnxruntime, the reference of this suite, is not installed: `make setup`, or "
            "`pip install -e '.[test]'` in the checkout, installs it"
        ) from None
    options = SessionOptions()
    options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    most = 0
    for node in graph:
        if graph.out(node).dtype == "float32":
            continue
        session = InferenceSession(
            node_model(graph, node).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        given = {each.name: values[each.name] for each in session.get_inputs()}
        (wanted,) = session.run(None, given)
        off = int(np.abs(values[node.outputs[0]].astype(np.int64) - np.asarray(wanted)).max())
        if off > (_FLOAT if node.op in _FLOAT_OPS else _LAST_PLACE):
            raise WorkError(f"node {node.name!r} ({node.op}) is {off} units away from onnxruntime")
        most = max(most, off)
    return most


_LANES = load_target(DEFAULT_TARGET).n


@dataclass(frozen=True)
class Condition:
    """Conditions of a measurement: hardware configuration, DRAM timing and batch size.

    Parameters
    ----------
    name : str
        Name of the conditions in the table.
    target : str
        Name of the target.
    latency : int
        DRAM latency in cycles.
    share : float
        DRAM bandwidth as a fraction of one beat per cycle.
    batch : int
        Batch size in samples.
    """

    name: str
    target: str = DEFAULT_TARGET
    latency: int = 100
    share: float = 1.0
    batch: int = 1


CONDITIONS = (
    Condition("as above"),
    *(
        Condition(f"N = {lanes}", target=name)
        for lanes, name in targets_by_lanes().items()
        if lanes in (_LANES // 2, _LANES * 2)
    ),
    Condition("latency 20", latency=20),
    Condition("latency 400", latency=400),
    Condition("half the bandwidth", share=0.5),
    Condition("batches of 4", batch=4),
)
#: Single layers; networks are also measured with batches.
_GEMM = ("17x17x17", "100x70x33", "128x128x128", "1x1024x1024")
_CONV = ("7x7x256-256-3-1", "56x56x3-32-3-2", "28x28x64-64-3-1-dw")
_TINY = ("ad01_int8", "kws_ref_model", "pretrainedResnet_quant")


def _cases(condition: Condition) -> list[Case]:
    networks = [tiny.tiny_case(name) for name in _TINY]
    if condition.batch > 1:
        return networks
    return [*(gemm_case(n) for n in _GEMM), *(conv_case(n) for n in _CONV), *networks]


def condition_cases() -> int:
    """Return the number of results of `run_conditions`."""
    return sum(len(_cases(condition)) for condition in CONDITIONS)


def run_conditions(seed: int, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Yield the result of each case under each condition: the fields of `run_case` and the name of the condition."""
    for condition in CONDITIONS:
        config = load_target(condition.target)
        rate = config.beat_bytes * condition.share

        def machine(network: CompiledNetwork, latency: int = condition.latency, rate: float = rate) -> Device:
            return open_device(network, "rtl", 1, latency, rate, lambda _text: None)

        for case in _cases(condition):
            say(f"{condition.name}: {case.name}")
            dram = DramTiming(condition.latency, rate)
            result, _ = run_case(
                case,
                config,
                np.random.default_rng(seed),
                machine,
                lambda _text: None,
                dram=dram,
                batch=condition.batch,
            )
            yield {"condition": condition.name} | result
