"""Any legal schedule gives the same outputs; illegal schedules are rejected."""

import json
import random
from dataclasses import fields, replace

import numpy as np
import pytest

from compiler.api import compile
from compiler.bench.single_layer import OneLayer
from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Quantization, Tensor
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import Session, dram_bytes
from compiler.schedule.schedule import LayerSchedule, Schedule
from cosim.golden import GoldenDevice
from hw.config import load_target
from hw.errors import InputError
from tests.codegen.test_scaled_products import computed, product
from tests.support.graphs import Draft
from tests.support.trained_networks import model, random_inputs

ROUNDS = 12
KWS, RESNET = model("kws_ref_model"), model("pretrainedResnet_quant")


def perturbed(schedule: Schedule, rng: random.Random) -> Schedule:
    """Return a schedule with random values in some fields of some layers."""
    layers = {}
    for name, layer in schedule.layers.items():
        changes = {
            "rows": rng.choice((1, 2, 3, 5, 8, 40)),
            "width": rng.choice((1, 2, 3, 40)),
            "rows_per_load": rng.choice((4, 8, 40)),
            "columns": rng.choice((1, 2, 3, 8)),
            "depth": rng.choice((1, 2, 3, 64)),
            "param_blocks": rng.choice((1, 2, 8)),
            "param_buffers": rng.choice((1, 2, 3)),
            "order": rng.choice(("rows", "channels")),
            "x_buffers": rng.choice((1, 2, 3)),
            "w_buffers": rng.choice((1, 2, 8)),
            "y_buffers": rng.choice((1, 2)),
            "acc_buffers": rng.choice((1, 2, 3)),
            "fold_kernel_width": rng.random() < 0.5,
            "im2col": rng.random() < 0.5,
            "pixels_per_pass": rng.choice((1, 2, 3, 4)),
            "prefetch": rng.choice((0, 1, 4, 20)),
            "on_chip": rng.random() < 0.6,
            "same_program_as_previous": rng.random() < 0.3,
            "interleave": rng.random() < 0.5,
            "split_last_tile": rng.random() < 0.5,
            "split_first_tile": rng.random() < 0.5,
        }
        chosen = rng.sample(sorted(changes), rng.randint(0, 6))
        layers[name] = replace(layer, **{field: changes[field] for field in chosen})
    return replace(schedule, layers=layers)


def outputs(network: CompiledNetwork, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        return Session(device, network).run(inputs)


@pytest.mark.parametrize("target", ["n8", "n16"])
@pytest.mark.parametrize("name", ["kws_ref_model", "pretrainedResnet_quant"])
def test_random_schedules_change_no_output(name: str, target: str) -> None:
    first = compile(model(name), target)
    inputs = random_inputs(first, np.random.default_rng(8))
    wanted = outputs(first, inputs)
    ran = 0
    for seed in range(ROUNDS):
        schedule = perturbed(first.schedule, random.Random(seed))
        try:
            network = compile(model(name), target, schedule=schedule)
        except InputError:
            continue  # does not fit
        ran += 1
        found = outputs(network, inputs)
        for output in wanted:
            assert np.array_equal(found[output], wanted[output]), (
                f"seed {seed}: {output}\n{schedule.to_json()}"
            )
    assert ran >= ROUNDS // 4


@pytest.mark.parametrize("target", ["n4", "n16"])
def test_random_schedules_of_products_with_factors(target: str, rng: np.random.Generator) -> None:
    """Any cut of the reduction, also of pairs of tiles that wide mode joins."""
    draft, n = Draft(rng), load_target(target).n
    x = draft.input((int(rng.integers(1, 70)), 10 * n))
    hidden = product(draft, x, 8 * n, 2 * n)
    graph = draft.graph.finish([product(draft, hidden, 3 * n + 1, 4 * n).name])
    first, inputs = compile(graph, target), draft.random_inputs()
    wanted, ran = computed(graph, inputs), 0
    for seed in range(ROUNDS):
        schedule = perturbed(first.schedule, random.Random(seed))
        try:
            network = compile(graph, target, schedule=schedule)
        except InputError:
            continue  # does not fit
        ran += 1
        found = outputs(network, inputs)
        assert all(np.array_equal(found[name], each) for name, each in wanted.items()), f"seed {seed}"
    assert ran >= ROUNDS // 2


def one_scale(weights: tuple[int, ...], axis: int, terms: int) -> OneLayer:
    layer = OneLayer(np.random.default_rng(5), weights, axis, terms)
    layer.scales[:] = layer.scales[0]
    return layer


WINDOW = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
DENSE = one_scale((40, 70), 0, 70).graph("dense", (5, 70), (5, 40))
CONV = one_scale((20, 3, 3, 6), 0, 54).graph("conv2d", (1, 9, 7, 6), (1, 9, 7, 20), groups=1, **WINDOW)
DEPTHWISE = one_scale((3, 3, 20), 2, 9).graph("depthwise_conv2d", (1, 9, 7, 20), (1, 9, 7, 20), **WINDOW)


@pytest.mark.parametrize("graph", [DENSE, CONV, DEPTHWISE], ids=["dense", "conv", "depthwise"])
@pytest.mark.parametrize("target", ["n4", "n16"])
def test_common_multiplier_is_a_command_field(graph: Graph, target: str) -> None:
    first = compile(graph, target, rounding="reference")
    inputs = random_inputs(first, np.random.default_rng(8))
    wanted = outputs(first, inputs)
    rng = random.Random(9)
    for _ in range(6):
        schedule = perturbed(first.schedule, rng)
        layers = {name: replace(layer, common_scale=True) for name, layer in schedule.layers.items()}
        network = compile(graph, target, rounding="reference", schedule=replace(schedule, layers=layers))
        assert sum(len(code.image) for code in network.codes) < sum(len(code.image) for code in first.codes)
        assert np.array_equal(outputs(network, inputs)["y"], wanted["y"]), schedule.to_json()


def test_strips_of_a_depthwise_convolution_with_a_fused_sum() -> None:
    layer = OneLayer(np.random.default_rng(6), (3, 3, 20), 2, 9)
    graph = layer.graph("depthwise_conv2d", (1, 9, 7, 20), (1, 9, 7, 20), **WINDOW)
    graph.add_tensor(Tensor("sum", (1, 9, 7, 20), "int8", Quantization.per_tensor(0.15, 2)))
    graph.add_node(Node("add", "add", ("y", "x"), ("sum",), {}))
    graph.finish(["sum"])
    rng, first = random.Random(4), compile(graph, "n4", rounding="xnnpack")
    (name,) = first.schedule.layers  # the sum is fused into the convolution
    inputs = random_inputs(first, np.random.default_rng(8))
    wanted = outputs(first, inputs)
    for width in (1, 2, 3, 4, 6):
        layers = {name: replace(first.schedule.layers[name], width=width, rows=rng.choice((1, 2, 4)))}
        network = compile(graph, "n4", rounding="xnnpack", schedule=replace(first.schedule, layers=layers))
        assert np.array_equal(outputs(network, inputs)["sum"], wanted["sum"]), width


@pytest.mark.parametrize("target", ["n4", "n16"])
@pytest.mark.parametrize("strides", [(1, 1), (2, 1), (2, 3)])
@pytest.mark.parametrize("pads", [(1, 1, 1, 1), (0, 0, 0, 0), (2, 0, 1, 2)])
def test_split_first_tiles_of_strips(target: str, strides: tuple[int, int], pads: tuple[int, ...]) -> None:
    """Splitting the first tiles is correct with padding on all sides, any band positions, and tiles of one or all
    rows.
    """
    (h, w), kernel = (13, 9), (3, 3)
    size = [(h, w)[i] + pads[i] + pads[i + 2] - kernel[i] for i in range(2)]
    rows, cols = (size[i] // strides[i] + 1 for i in range(2))
    layer = OneLayer(np.random.default_rng(7), (10, 3, 3, 3), 0, 27)
    window = {"strides": strides, "pads": pads, "dilations": (1, 1), "groups": 1}
    graph = layer.graph("conv2d", (1, h, w, 3), (1, rows, cols, 10), **window)
    first = compile(graph, target, rounding="reference")
    inputs = random_inputs(first, np.random.default_rng(8))
    (name,) = first.schedule.layers
    plain = replace(
        first.schedule.layers[name], im2col=False, fold_kernel_width=False, split_first_tile=False
    )
    apart = compile(
        graph, target, rounding="reference", schedule=replace(first.schedule, layers={name: plain})
    )
    wanted = outputs(apart, inputs)["y"]
    for tile, band in ((1, 4), (4, 4), (5, 40), (40, 40)):
        ramped = replace(
            plain, im2col=True, split_first_tile=True, rows=tile, rows_per_load=band, on_chip=False
        )
        network = compile(
            graph, target, rounding="reference", schedule=replace(first.schedule, layers={name: ramped})
        )
        assert np.array_equal(outputs(network, inputs)["y"], wanted), (tile, band)


def test_different_multipliers_are_not_a_command_field() -> None:
    network = compile(KWS, "n16")
    layers = {name: replace(layer, common_scale=True) for name, layer in network.schedule.layers.items()}
    with pytest.raises(InputError, match=f"layer '{next(iter(layers))}': common_scale needs one multiplier"):
        compile(KWS, "n16", schedule=replace(network.schedule, layers=layers))


def test_schedules_round_trip_as_text() -> None:
    schedule = compile(KWS, "n16").schedule
    assert Schedule.from_json(schedule.to_json()) == schedule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "schema_version"),
        ('{"schema_version": 3}', "schema_version"),
        ('{"schema_version": []}', "schema_version"),
        ('{"schema_version": true}', "schema_version"),
        ('{"schema_version": 1, "fusions": 3}', "list of lists"),
        ('{"schema_version": 1, "fusions": [[]]}', "not empty"),
        ('{"schema_version": 1, "layers": []}', "must be an object"),
        ('{"schema_version": 1, "layers": {"a": {"tile": 3}}}', "must have fields among"),
        ('{"schema_version": 1, "layers": {"a": {"rows": 0}}}', "rows must be at least 1"),
        ('{"schema_version": 1, "layers": {"a": {"rows": true}}}', "rows must be an integer"),
        (
            '{"schema_version": 2, "layers": {"a": {"fold_kernel_width": 1}}}',
            "fold_kernel_width must be true or false",
        ),
        ('{"schema_version": 1, "layers": {"a": {"order": "x"}}}', 'must be "rows" or "channels"'),
    ],
)
def test_damaged_schedules_are_rejected(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Schedule.from_json(text)


def test_schedule_must_match_the_layers_of_the_network() -> None:
    network = compile(KWS, "n16")
    with pytest.raises(InputError, match="no schedule for layer"):
        compile(KWS, "n16", schedule=Schedule(network.schedule.fusions, {}))
    with pytest.raises(InputError, match="there is no such node"):
        compile(KWS, "n16", schedule=Schedule((("nobody",),), {}))
    with pytest.raises(InputError, match="in two fusions"):
        names = network.schedule.fusions[0]
        compile(KWS, "n16", schedule=Schedule((names, names), {}))


def test_layers_that_do_not_fit_are_named() -> None:
    network = compile(RESNET, "n16")
    name = next(iter(network.schedule.layers))
    layers = network.schedule.layers | {name: LayerSchedule(rows=31, columns=1, acc_buffers=2)}
    with pytest.raises(InputError, match=f"layer '{name}'.*does not fit acc"):
        compile(RESNET, "n16", schedule=replace(network.schedule, layers=layers))


@pytest.mark.parametrize("name", [item.name for item in fields(LayerSchedule) if type(item.default) is int])
def test_huge_integers_are_rejected(name: str) -> None:
    text = json.dumps({"schema_version": 2, "layers": {"conv7": {name: 1 << 40}}})
    most = 256 if name in ("y_buffers", "acc_buffers") else 1 << 24
    with pytest.raises(InputError, match=rf"layer 'conv7'.*{name} must be at most {most}"):
        Schedule.from_json(text)
    assert getattr(Schedule.from_json(text.replace(str(1 << 40), str(most))).layers["conv7"], name) == most


#: Values of every JSON type, of which some are legal in some fields.
_VALUES = (None, True, 0, 1, -1, 1 << 70, 0.5, "", "rows", [], [[]], [1], ["a"], {}, {"a": 1}, [{}])


def _damaged(value: object, rng: random.Random) -> object:
    """Return a document with some values replaced at random."""
    if rng.random() < 0.1:
        return rng.choice(_VALUES)
    if isinstance(value, dict):
        return {key: _damaged(each, rng) for key, each in value.items() if rng.random() < 0.95}
    return [_damaged(each, rng) for each in value] if isinstance(value, list) else value


def test_damaged_documents_are_schedules_or_input_errors() -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    layer = {name: getattr(LayerSchedule(), name) for name in ("rows", "width", "depth", "order")}
    text = {"text": "halt", "operands": [1, 2]}
    document = {
        "schema_version": 1,
        "fusions": [["a", "b"], ["c"]],
        "layers": {"a": layer, "c": layer},
        "programs": {"a": text},
    }
    read = 0
    for _ in range(3000):
        try:
            Schedule.from_json(json.dumps(_damaged(document, rng)))
            read += 1
        except InputError:
            pass
    assert 0 < read < 3000


@pytest.mark.parametrize("op", ["softmax", "layer_norm", "rms_norm"])
def test_a_single_buffer_of_rows_changes_no_output(op: str) -> None:
    draft = Draft(np.random.default_rng(0))
    x = draft.input((40, 20))
    if op == "softmax":
        y = Tensor("y", x.shape, "int8", Quantization.per_tensor(1 / 256, -128))
        draft.into(op, [x], y, axis=1, beta=1.0)
    else:
        scales = draft.graph.add_tensor(Tensor("scales", (20,), "float32", None, np.ones(20, np.float32)))
        shifts = draft.graph.add_tensor(Tensor("shifts", (20,), "float32", None, np.zeros(20, np.float32)))
        operands = [x, scales, shifts] if op == "layer_norm" else [x, scales]
        y = draft.node(op, operands, x.shape, scale=0.03, axis=1, epsilon=1e-5)
    graph = draft.graph.finish([y.name])
    first, inputs = compile(graph, "n8"), draft.random_inputs()
    ((name, layer),) = first.schedule.layers.items()
    single = replace(first.schedule, layers={name: replace(layer, rows=7, x_buffers=1)})
    found = outputs(compile(graph, "n8", schedule=single), inputs)
    np.testing.assert_equal(found, outputs(first, inputs))
