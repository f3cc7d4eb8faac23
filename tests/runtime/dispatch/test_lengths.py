"""Networks with programs for several lengths: outputs are exact, one set of programs stays loaded."""

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import compiler
from compiler.codegen.length_programs import LengthOperands, LengthsError, LengthValue, merged
from compiler.frontends.model import read_model
from compiler.ir.graph import Graph
from compiler.passes.batch import with_length
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.package_writer import from_bytes, to_bytes
from compiler.runtime.run_report import document, run_samples
from compiler.runtime.session import Session, dram_bytes
from compiler.runtime.validation import validate_network
from compiler.serving.server import Server, serving_bytes
from compiler.validate import ValidationError
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from hw.errors import InputError
from hw.isa.micro_instruction import OPERAND_BASE
from tests.support.onnx_models import model, reference
from tests.support.onnx_qdq import Qdq, integers
from tests.support.sequence_models import TOKENS, encoder, quantized

#: Maximum ratio of the cycles of a program for several lengths to those of a program for one length.
CEILING = 1.05
#: Lengths of the large encoder at which cycles are compared.
COMPARED = (8, 9, 16, 31, 64, 100, 127, 128)


def _ignore(_text: str) -> None:
    """Ignore a progress message."""


def _dense(folder: Path) -> Path:
    """Write a QDQ model of a matrix product with a dynamic number of rows; return its path."""
    net = Qdq()
    w = net.weights("w", integers(24, 40, seed=5), 2**-6, axis=1)
    # With powers of two, onnxruntime's floating-point values are exact.
    net.quantized(net.add("MatMul", f"{net.real('x', 2**-4)} {w}", "product"), 2**-3)
    made = model(net.nodes, {"x": integers(4, 24)}, ["y"], net.held)
    for value in (*made.graph.input, *made.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = TOKENS
    path = folder / "dense.onnx"
    onnx.save(made, path)
    return path


def _separate(graph: Graph) -> CompiledNetwork:
    """Return a network for one length."""
    return compiler.compile(graph, "n16", rounding="onnxruntime", cache=False, database=False)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CompiledNetwork]:
    path = encoder(tmp_path_factory.mktemp("small"), 32, 1, 2, seed=3)
    return path, compiler.compile(path, "n16", sizes={TOKENS: range(8, 41)}, cache=False)


def test_rows_of_a_product_equal_onnxruntime(tmp_path: Path, rng: np.random.Generator) -> None:
    """Every number of rows has the results of onnxruntime and of a network for this number."""
    path = _dense(tmp_path)
    network = compiler.compile(path, "n16", sizes={TOKENS: range(8, 129)}, cache=False)
    made = onnx.load(path)
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        session = Session(device, network)
        loaded = session.load_cycles
        for length in rng.permutation(np.arange(8, 129)):
            x = rng.integers(-128, 128, (length, 24)).astype(np.int8)
            np.testing.assert_array_equal(session.run({"x": x})["y"], reference(made, {"x": x})["y"])
        assert session.resident and session.load_cycles == loaded and session.runs == [121]


def test_every_length_of_an_encoder(small: tuple[Path, CompiledNetwork], rng: np.random.Generator) -> None:
    """Outputs equal those of a network for the graph that was imported and quantized for the length."""
    path, network = small
    longest = quantized(path, 40)
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        session = Session(device, network)
        for length in range(8, 41):
            x = rng.standard_normal((1, length, 32)).astype(np.float32)
            separate = _separate(quantized(path, length, longest))
            np.testing.assert_equal(session.run({"x": x}), separate(x=x), err_msg=f"length {length}")


def test_encoder_on_the_chip(tmp_path: Path, rng: np.random.Generator) -> None:
    """A large encoder is exact at all lengths, within 5% of the cycles of separate programs, with one load."""
    path = encoder(tmp_path, 64, 2, 2, seed=1)
    lengths = sorted({*COMPARED, 24, 32, 48, 96})  # among them those at which programs may end
    network = compiler.compile(path, "n16", sizes={TOKENS: lengths}, cache=False, database=False)
    longest = quantized(path, COMPARED[-1])
    with RtlDevice(network.config, dram_bytes(network)) as device:
        session = Session(device, network)
        loaded = session.load_cycles
        for length in COMPARED:
            x = {"x": rng.standard_normal((1, length, 64)).astype(np.float32)}
            found, cycles = session.measure(x)
            separate = _separate(quantized(path, length, longest))
            with RtlDevice(separate.config, dram_bytes(separate)) as other:
                wanted, own = Session(other, separate).measure(x)
            print(f"{length} tokens: {cycles:,} cycles, separately {own:,}")
            np.testing.assert_equal(found, wanted)
            assert cycles <= CEILING * own
        assert session.resident and session.load_cycles == loaded
        assert sum(session.taken[0].values()) == len(COMPARED)


def test_report(small: tuple[Path, CompiledNetwork]) -> None:
    _, network = small
    assert network.lengths is not None
    samples = [{"x": np.zeros((1, 11, 32), np.float32)}] * 2
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        report = document(network, run_samples(device, network, samples, _ignore))
    sized = network.at(11)
    assert report["lengths"] == [11, 11] and report["macs"] == 2 * sized.floor.macs < 2 * network.floor.macs
    assert sum(layer["macs"] for layer in report["layers"]) == report["macs"]
    if len(network.lengths.longest) > 1:
        runs = [each["runs"] for each in report["variants"]]
        assert runs[next(i for i, most in enumerate(network.lengths.longest) if most >= 11)] == 2


def test_files_hold_all_lengths(small: tuple[Path, CompiledNetwork], rng: np.random.Generator) -> None:
    _, network = small
    data = to_bytes(network)
    read = from_bytes(io.BytesIO(data))
    assert read.lengths == network.lengths and to_bytes(read) == data
    x = {"x": rng.standard_normal((1, 13, 32)).astype(np.float32)}
    with (
        GoldenDevice(read.config, dram_bytes(read)) as one,
        GoldenDevice(network.config, dram_bytes(network)) as other,
    ):
        np.testing.assert_equal(Session(one, read).run(x), Session(other, network).run(x))


def test_every_length_is_validated(small: tuple[Path, CompiledNetwork]) -> None:
    validate_network(small[1])


def _edited(network: CompiledNetwork, change: Callable[[dict[str, Any]], None]) -> bytes:
    """Return the file of a network after a change of its lengths."""
    source, target = zipfile.ZipFile(io.BytesIO(to_bytes(network))), io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for info in source.infolist():
            contents = source.read(info)
            if info.filename == "manifest.json":
                manifest = json.loads(contents)
                change(manifest["lengths"])
                contents = json.dumps(manifest).encode()
            archive.writestr(info.filename, contents)
    return target.getvalue()


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("values", [], "lengths must ascend"),
        ("values", [9, 8], "lengths must ascend"),
        ("longest", [], "guards do not match the variants"),
        ("longest", [39], "guards do not match the variants"),
        ("operands", [[8]], "each length must have the same number of operands"),
        ("growth", {"x": [0, 2, 0]}, "growth|x:quantize"),
        ("floors", [], "each length must have the work"),
        ("name", 3, "name must be str"),
    ],
)
def test_damaged_files_are_rejected(
    small: tuple[Path, CompiledNetwork], key: str, value: Any, text: str
) -> None:
    data = _edited(small[1], lambda lengths: lengths.update({key: value}))
    with pytest.raises(InputError, match=rf"^damaged compiled network: .*({text})"):
        from_bytes(io.BytesIO(data))


def test_hostile_operands_are_rejected_by_the_proof(small: tuple[Path, CompiledNetwork]) -> None:
    """Other operands make programs access other memory, which the proof of the length finds before they run."""

    def change(lengths: dict[str, Any]) -> None:
        lengths["operands"] = [
            [length, *([1 << 19] * (len(others)))] for length, *others in lengths["operands"]
        ]

    network = from_bytes(io.BytesIO(_edited(small[1], change)))
    with GoldenDevice(network.config, dram_bytes(network)) as device, pytest.raises(ValidationError):
        Session(device, network)


def test_server(small: tuple[Path, CompiledNetwork], rng: np.random.Generator) -> None:
    """Requests of any length are served by one version, without further loads of programs."""
    _, network = small
    requests = [
        {"x": rng.standard_normal((1, length, 32)).astype(np.float32)} for length in (40, 8, 23, 8, 17)
    ]
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        session = Session(device, network)
        wanted = [session.run(request) for request in requests]
    with GoldenDevice(network.config, serving_bytes(network)) as device:
        server = Server(device, network)
        loads = server.queue.resident_programs.loads
        found = [result.outputs for result in server.serve(requests)]
        assert server.queue.resident_programs.loads == loads
    np.testing.assert_equal(found, wanted)


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((1, 7, 32), "size 7 .tokens. in dimension 1; .* has programs for tokens of 8 to 40"),
        ((1, 41, 32), "size 41 .tokens. in dimension 1"),
        ((1, 8, 31), r"must be float32\[1, 8, 32\], not float32\[1, 8, 31\]"),
        ((8,), r"must be float32\[1, 40, 32\], not float32\[8\]"),
    ],
)
def test_other_inputs_are_rejected(
    small: tuple[Path, CompiledNetwork], shape: tuple[int, ...], text: str
) -> None:
    with pytest.raises(InputError, match=text):
        small[1](np.zeros(shape, np.float32))
    with pytest.raises(InputError, match="has programs for tokens of 8 to 40, not 7"):
        small[1].at(7)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"sizes": {TOKENS: [8, 8]}}, "must be lengths that ascend"),
        ({"sizes": {TOKENS: []}}, "must be 1..4,096 lengths, not 0"),
        ({"sizes": {TOKENS: [8, "9"]}}, "must be an integer"),
        ({"sizes": {TOKENS: [0, 9]}}, "must be at least 1"),
        ({"sizes": {TOKENS: range(8, 10), "n": range(2, 4)}}, "only one dimension can have several lengths"),
        ({"sizes": {"rows": range(8, 10)}}, "rows"),
        ({"sizes": {TOKENS: range(8, 10)}, "batches": (1, 2)}, "cannot be combined with batches"),
        ({"sizes": {TOKENS: range(8, 10)}, "int16": "all"}, "cannot be combined with int16|list of names"),
    ],
)
def test_invalid_arguments(tmp_path: Path, arguments: dict[str, Any], text: str) -> None:
    path = _dense(tmp_path)
    with pytest.raises(InputError, match=text):
        compiler.compile(path, "n16", cache=False, **arguments)


def test_node_on_the_host_is_rejected(tmp_path: Path) -> None:
    path = encoder(tmp_path, 16, 1, 1, seed=2)
    with pytest.raises(InputError, match=r"must have one|must run on the accelerator"):
        compiler.compile(path, "n16", sizes={TOKENS: (8, 9)}, host=("softmax",), cache=False)


def test_graphs_for_other_lengths(tmp_path: Path) -> None:
    """Sizes are linear in the length, and everything else is that of the second graph."""
    path = encoder(tmp_path, 16, 1, 2, seed=2)
    low, middle, high = (read_model(path, {TOKENS: length}) for length in (8, 11, 20))
    made = with_length((low, high), (8, 20), 11)
    assert str(made) == str(middle)
    assert [t.shape for t in made.tensors.values()] == [t.shape for t in middle.tensors.values()]
    with pytest.raises(InputError, match="has other nodes for length 8 than for 20"):
        with_length((read_model(encoder(tmp_path, 16, 2, 2, seed=2), {TOKENS: 8}), high), (8, 20), 11)


def test_numbers_that_depend_on_the_length() -> None:
    one, other = merged([3, 5]), merged([2, 2])
    assert isinstance(one, LengthValue) and (other, type(other)) == (2, int)
    assert (one - 1, 1 - one, one * 2) == (merged([2, 4]), merged([-2, -4]), merged([6, 10]))
    assert one - merged([1, 3]) == 2 and one != 5 and len({one, merged([3, 5])}) == 1
    operands = LengthOperands(3, (8, 10))
    assert isinstance(one, LengthValue)
    assert operands.find(one) == (OPERAND_BASE + 3, -5)  # the length, minus a constant
    assert operands.find(LengthValue((0, 4))) == (OPERAND_BASE + 4, 0)
    assert operands.find(LengthValue((7, 11))) == (OPERAND_BASE + 4, 7)
    with pytest.raises(LengthsError, match="different numbers depend on the length"):
        for number in range(100):
            operands.find(LengthValue((0, 5 + number)))
