"""Layers after a tensor of zeros are skipped, and the outputs do not change."""

import io
from collections import Counter

import numpy as np
import pytest

from compiler.api import compile
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization, Tensor
from compiler.reference import evaluate
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.package_writer import from_bytes, to_bytes
from compiler.runtime.run_report import document, run_samples
from compiler.runtime.session import Session, dram_bytes
from compiler.runtime.validation import validate_network
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from hw.errors import InputError
from tests.support.graphs import Draft
from tests.support.trained_networks import Reference, model

#: Maximum cycles of ad01 on n16: with the additional check of the input, and for an input of zeros.
AD01_CEILINGS = {"looked": 18_400, "skipped": 950}
WINDOW = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}


def gated(rng: np.random.Generator, channels: int = 8, dtype: str = "int8", zero: int | None = None) -> Graph:
    """Return a graph of four layers, of which the second, a ReLU, gives only zeros for a dark image.

    The layers are a convolution, the ReLU and two convolutions. `zero` is the zero point of the ReLU's output; the
    default is the minimum of the type.
    """
    draft, low = Draft(rng), np.iinfo(dtype).min
    x = draft.graph.add_input(Tensor("x", (1, 6, 5, 4), dtype, Quantization.per_tensor(0.05, low)))
    meaning = Quantization.per_tensor(2.0, low if zero is None else zero)
    weights = np.asarray(rng.integers(1, 100, (channels, 3, 3, 4)), "int8")
    w = draft.graph.add_tensor(Tensor("w", weights.shape, "int8", Quantization.per_tensor(0.01, 0), weights))
    limits = Tensor(
        "b",
        (channels,),
        "int32",
        Quantization.per_tensor(0.05 * 0.01, 0),
        np.full(channels, -20_000, "int32"),
    )
    b = draft.graph.add_tensor(limits)
    y = draft.into(
        "conv2d",
        [x, w, b],
        Tensor("y", (1, 6, 5, channels), dtype, meaning),
        **WINDOW,
    )
    gate = draft.into("clip", [y], Tensor("gate", y.shape, dtype, y.quantization), low=0.0, high=1e3)
    z = draft.node(
        "conv2d", [gate, draft.constant((12, 3, 3, channels))], (1, 6, 5, 12), scale=50.0, **WINDOW
    )
    out = draft.node("conv2d", [z, draft.constant((6, 3, 3, 12))], (1, 6, 5, 6), scale=60.0, **WINDOW)
    return draft.graph.finish([out.name])


def dark_image(graph: Graph) -> np.ndarray:
    """Return an image for which the ReLU gives only zeros."""
    (name,) = graph.inputs
    tensor = graph.tensors[name]
    return np.full(tensor.shape, np.iinfo(tensor.dtype).min, tensor.dtype)


def bright_image(graph: Graph, rng: np.random.Generator) -> np.ndarray:
    """Return an image for which the ReLU gives many nonzero values."""
    return (dark_image(graph).astype(int) + rng.integers(100, 256, dark_image(graph).shape)).astype(
        dark_image(graph).dtype
    )


def names(network: CompiledNetwork) -> list[str]:
    """Return the names of the network's programs."""
    return [program.name for code in network.codes for program in code.all_programs]


@pytest.mark.parametrize("rtl", [False, True], ids=["golden", "rtl"])
@pytest.mark.parametrize("tensor", ["x", "y", "gate"])
@pytest.mark.parametrize(("channels", "zero"), [(3, None), (8, None), (8, 5)])
def test_outputs_do_not_depend_on_skipping(
    rng: np.random.Generator, tensor: str, channels: int, zero: int | None, rtl: bool
) -> None:
    graph = gated(rng, channels, zero=zero)
    network = compile(graph, "n4", skip=tensor)
    assert len(network.stages) == 1
    nearly = dark_image(graph)
    nearly[0, 2, 2, 1] += 1 if tensor == "x" else 127
    images = [
        dark_image(graph),
        bright_image(graph, rng),
        dark_image(graph),
        nearly,
        bright_image(graph, rng),
        dark_image(graph),
    ]
    with (RtlDevice if rtl else GoldenDevice)(network.config, dram_bytes(network)) as device:
        session, skipped = Session(device, network), 0
        for image in images:
            (found,) = session.run({"x": image}).values()
            (wanted,) = evaluate(graph, {"x": image}).values()
            np.testing.assert_array_equal(found, wanted)
            inside = _values(graph, tensor, image)
            skipped += bool((inside == graph.tensors[tensor].quantization.zero_point[0]).all())  # type: ignore[union-attr]
        assert session.taken == [Counter({0: skipped, 1: len(images) - skipped})]
        assert skipped >= 3 or tensor == "y"


def _values(graph: Graph, tensor: str, image: np.ndarray) -> np.ndarray:
    """Return the value of a tensor of the graph."""
    if tensor == "x":
        return image
    part = Graph("part")
    part.add_input(graph.tensors["x"])
    for node in graph:
        for name in node.inputs:
            if name not in part.tensors:
                part.add_tensor(graph.tensors[name])
        part.add_tensor(graph.out(node))
        part.add_node(node)
        if graph.out(node).name == tensor:
            break
    return evaluate(part.finish([tensor]), {"x": image})[tensor]


def test_skipping_with_uint8(rng: np.random.Generator) -> None:
    graph = gated(rng, dtype="uint8")
    for tensor in ("x", "make gate"):  # the message names the node that computes the tensor
        network = compile(graph, "n4", skip=tensor)
        for image in (dark_image(graph), bright_image(graph, rng)):
            (found,) = network(image).values()
            np.testing.assert_array_equal(found, next(iter(evaluate(graph, {"x": image}).values())))


def test_skipped_tensor_that_is_an_output(rng: np.random.Generator) -> None:
    """A skipped tensor that is also an output must be written, so the stages remain separate."""
    graph = gated(rng)
    graph.finish([*graph.outputs, "gate"])
    network, one = compile(graph, "n4", skip="gate"), compile(graph, "n4")
    assert len(network.stages) == 2
    for image in (dark_image(graph), bright_image(graph, rng)):
        np.testing.assert_equal(network(image), one(image))


def test_statistics_of_one_command_replace_the_check(rng: np.random.Generator) -> None:
    """The statistics of a single drain command replace the check; several commands, or a nonzero minimum, need a
    check.
    """
    draft = Draft(rng)
    x = draft.input((1, 12))
    narrow = Tensor("narrow", (1, 4), "int8", Quantization.per_tensor(1.0, -128))
    y = draft.into("dense", [x, draft.constant((4, 12))], narrow)
    out = draft.node("dense", [y, draft.constant((9, 4))], (1, 9), scale=9.0)
    network = compile(draft.graph.finish([out.name]), "n4", skip="narrow")
    assert not any("probe" in name for name in names(network))
    (variant,) = network.codes[0].parts[-1].instead
    assert str(variant.guard) == "%fuse_max == -128"
    network = compile(gated(rng), "n4", skip="x")
    assert names(network)[0] == "probe x"
    assert str(network.codes[0].parts[-1].instead[0].guard) == f"%fuse_zeros == {6 * 5 * 4}"


def test_skipping_back_to_back(rng: np.random.Generator) -> None:
    """With skipped and other samples in the ring, each guard reads the statistics of its own sample."""
    graph = gated(rng)
    images = [bright_image(graph, rng), dark_image(graph), bright_image(graph, rng), dark_image(graph)]
    network = compile(graph, "n4", skip="gate")
    with RtlDevice(network.config, dram_bytes(network, 4)) as device:
        run = run_samples(device, network, [{"x": image} for image in images], lambda _text: None)
    assert run.cycles is not None and run.steady is not None
    assert max(run.cycles[1], run.cycles[3]) < min(run.cycles[0], run.cycles[2])
    assert min(run.cycles) < run.steady < max(run.cycles)
    for image, found in zip(images, next(iter(run.outputs.values())), strict=True):
        np.testing.assert_array_equal(found[None], next(iter(evaluate(graph, {"x": image}).values())))


def test_ad01_skips_silence() -> None:
    path = model("ad01_int8")
    one, reference = compile(path, "n16"), Reference(path)
    (tensor,) = one.inputs
    zero = tensor.quantization.zero_point[0]  # type: ignore[union-attr]
    loud = np.random.default_rng(3).integers(-128, 128, tensor.shape).astype(np.int8)
    samples = [{tensor.name: loud}, {tensor.name: np.full(tensor.shape, zero, np.int8)}]
    network = compile(path, "n16", skip=tensor.name)
    with RtlDevice(network.config, dram_bytes(network, 2)) as device:
        run = run_samples(device, network, samples, lambda _text: None, steadily=False)
    for sample, found in zip(samples, next(iter(run.outputs.values())), strict=True):
        np.testing.assert_array_equal(found[None], reference(sample)[0])
    assert run.cycles is not None
    assert run.cycles[0] <= AD01_CEILINGS["looked"] and run.cycles[1] <= AD01_CEILINGS["skipped"]
    report = document(network, run)
    assert report["macs"] == 264_192 and report["floor_cycles"] < report["cycles"]
    assert [each["runs"] for each in report["variants"]] == [1, 1]
    assert sum(layer["cycles"] for layer in report["layers"]) == report["cycles"]


def test_both_programs_are_validated(rng: np.random.Generator) -> None:
    network = compile(gated(rng), "n4", skip="gate")
    assert [report.paths for report in validate_network(network, samples=2).values()] == [3]
    again = from_bytes(io.BytesIO(to_bytes(network)))
    assert to_bytes(again) == to_bytes(network) and names(again) == names(network)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"skip": "nothing"}, "skip: there is no tensor and no node 'nothing'"),
        ({"skip": "w"}, "depends on 'w' alone"),
        ({"skip": 3}, "skip must be the name of a tensor, or None, not 3"),
        ({"skip": "x", "batches": (1, 2)}, "skip cannot be combined with batches"),
    ],
)
def test_invalid_tensors_are_rejected(rng: np.random.Generator, options: dict, text: str) -> None:
    with pytest.raises(InputError, match=text):
        compile(gated(rng), "n4", **options)


def test_bypassed_tensor_is_rejected(rng: np.random.Generator) -> None:
    draft = Draft(rng)
    x = draft.input((1, 4))
    y = draft.node("dense", [x, draft.constant((4, 4))], (1, 4), scale=9.0)
    z = draft.node("dense", [y, draft.constant((4, 4))], (1, 4), scale=9.0)
    out = draft.node("add", [y, z], (1, 4), scale=9.0)
    last = draft.node("add", [out, x], (1, 4), scale=9.0)
    graph = draft.graph.finish([last.name])
    with pytest.raises(InputError, match=f"depends on {z.name!r} alone"):
        compile(graph, "n4", skip=z.name)


def test_tensor_of_another_type_is_rejected() -> None:
    draft = Draft(np.random.default_rng(0))
    x = draft.input((1, 8), dtype="int16")
    y = draft.node("requantize", [x], (1, 8), dtype="int16")
    with pytest.raises(InputError, match=r"skip: 'x1' must be int8 or uint8, not int16|no stage"):
        compile(draft.graph.finish([y.name]), "n4", skip="x1")


def test_too_large_tensor_is_rejected() -> None:
    draft = Draft(np.random.default_rng(0))
    x = draft.input((1, 300, 300, 1))
    y = draft.node("max_pool2d", [x], (1, 150, 150, 1), like=x, kernel=(2, 2), strides=(2, 2), pads=(0,) * 4)
    with pytest.raises(InputError, match=r"'x1' of 90,000 bytes does not fit the scratchpad of 65,536"):
        compile(draft.graph.finish([y.name]), "n4", skip="x1")
