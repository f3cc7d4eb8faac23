"""Outputs beyond whole blocks of N channels, of several rows in one block: exact, and of few cycles on the RTL."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from compiler.api import compile
from compiler.commands.tile_buffers import SharedRows, row_groups
from compiler.ir.tensor import Quantization, Tensor
from compiler.layers.conv.codegen import ConvSteps
from compiler.reference import evaluate
from compiler.runtime.session import dram_bytes
from compiler.schedule.schedule import LayerSchedule
from cosim.golden import GoldenDevice
from hw.errors import InputError
from tests.layers.test_thin_convolutions import TARGETS, Convolution
from tests.support.graphs import Draft, run_on

#: Attributes of a 3x3 pool whose output has the shape of its input.
_WINDOW = {"kernel": (3, 3), "strides": (1, 1), "pads": (1, 1, 1, 1)}


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> list[SharedRows]:
    """Return a list to which each convolution for which code is generated adds its blocks of several rows."""
    found: list[SharedRows] = []
    steps = ConvSteps.steps

    def recorded(self: ConvSteps) -> list:
        found.append(self.shared)
        return steps(self)

    monkeypatch.setattr(ConvSteps, "steps", recorded)
    return found


def test_blocks_have_each_output_once() -> None:
    for outputs in range(1, 16):
        for rows in range(1, 9):
            shared = SharedRows(rows, outputs, 16)
            for size in range(1, rows + 1):
                blocks = shared.blocks_of(size)
                found = [
                    (segment.row, channel)
                    for block in blocks
                    for segment in block.segments
                    for channel in range(segment.channel, segment.channel + segment.lanes)
                ]
                assert found == [(row, channel) for row in range(size) for channel in range(outputs)]
                assert all(block.lanes <= 16 and block.segments[0].lane == 0 for block in blocks)
    assert row_groups(11, 4) == [(0, 2, 4), (8, 1, 3)]
    assert row_groups(3, 4) == [(0, 1, 3)]


def schedules(rng: np.random.Generator, first: LayerSchedule, count: int) -> Iterator[LayerSchedule]:
    """Yield random schedules of a convolution for every layout of its image."""
    for number in range(count):
        rows, columns = (int(rng.integers(1, most)) for most in (9, 40))
        yield replace(
            first,
            im2col=bool(number & 1),
            fold_kernel_width=bool(number & 2),
            rows=rows,
            rows_per_load=rows * int(rng.integers(1, 3)),
            columns=int(rng.integers(1, 4)),
            order=str(rng.choice(["rows", "channels"])),
            strip_width=columns if rng.random() < 0.5 else 999,
            width=int(rng.integers(1, columns + 1)) if rng.random() < 0.5 else 999,
            x_buffers=int(rng.integers(1, 4)),
            y_buffers=int(rng.integers(1, 5)),
            w_buffers=int(rng.integers(1, 3)),
            acc_buffers=int(rng.integers(1, 4)),
            param_blocks=int(rng.integers(1, 4)),
            split_first_tile=bool(rng.integers(2)),
            split_last_tile=bool(rng.integers(2)),
            pixels_per_pass=int(rng.choice([1, 1, 2, 3])),
            on_chip=first.on_chip,
        )


def random_image(rng: np.random.Generator) -> tuple[Draft, Tensor, Tensor]:
    """Return a graph with a convolution of few outputs, its input and its output."""
    draft = Draft(rng)
    dtype = str(rng.choice(["int8", "uint8"]))
    kernel, strides = ([int(size) for size in rng.integers(1, most, 2)] for most in (6, 4))
    pads = tuple(int(rng.integers(0, size)) for size in (*kernel, *kernel))
    h, w = (int(rng.integers(size, most)) for size, most in zip(kernel, (24, 30), strict=True))
    batch, inputs, outputs = int(rng.integers(1, 3)), int(rng.integers(1, 6)), int(rng.integers(1, 42))
    x = draft.input((batch, h, w, inputs), dtype)
    zero = int(rng.integers(0, 256)) if dtype == "uint8" else int(rng.integers(-3, 4))
    weights = draft.constant((outputs, *kernel, inputs), dtype, Quantization.per_tensor(0.01, zero))
    size = [
        (each + pads[axis] + pads[axis + 2] - kernel[axis]) // strides[axis] + 1
        for axis, each in enumerate((h, w))
    ]
    how = {"strides": tuple(strides), "pads": pads, "dilations": (1, 1), "groups": 1}
    made = (batch, *size, outputs)
    return draft, x, draft.node("conv2d", [x, weights], made, scale=1.0, dtype=dtype, **how)


@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("target", TARGETS)
def test_random_convolutions_are_exact(
    target: str, number: int, rng: np.random.Generator, shared: list[SharedRows]
) -> None:
    draft, _, y = random_image(rng)
    after = rng.choice(["", "tanh", "add", "tail"])
    if after == "tanh":
        y = draft.node("tanh", [y], y.shape, dtype=y.dtype)
    elif after == "add":
        y = draft.node("add", [y, draft.input(y.shape, y.dtype)], y.shape, dtype=y.dtype)
    outputs = [y.name]
    if after == "tail":  # the result of the convolution is in the scratchpad
        outputs = [draft.node("max_pool2d", [y], y.shape, like=y, dtype=y.dtype, **_WINDOW).name]
    graph = draft.graph.finish(outputs)
    first = compile(graph, target, rounding="reference")
    inputs = draft.random_inputs()
    wanted = evaluate(graph, inputs, rounding="reference")
    name = first.layers[0].name
    ran = 0
    for schedule in (first.schedule.layers[name], *schedules(rng, first.schedule.layers[name], 8)):
        layers = first.schedule.layers | {name: schedule}
        try:
            network = compile(
                graph, target, rounding="reference", schedule=replace(first.schedule, layers=layers)
            )
        except InputError as error:
            assert "fit" in str(error)  # a random schedule may need too much memory
            continue
        with GoldenDevice(network.config, dram_bytes(network)) as device:
            found = run_on(device, network, inputs)
        assert all(np.array_equal(found[each], wanted[each]) for each in outputs), schedule
        ran += 1
    assert ran


@pytest.mark.parametrize(
    ("shape", "blocks"),
    [
        (Convolution(24, 24, inputs=3, outputs=24), [16]),  # 8 outputs of two rows
        (Convolution(24, 24, inputs=3, outputs=20, strides=(2, 2)), [12]),  # 4 outputs of three rows
        (Convolution(24, 24, inputs=3, outputs=12, kernel=(5, 5), pad=2), [16, 16, 16]),  # of four rows
        (Convolution(24, 23, inputs=3, outputs=8), [16]),
        (Convolution(24, 24, inputs=3, outputs=32), [16]),  # no outputs beyond whole blocks
    ],
)
def test_blocks_that_share_rows(shape: Convolution, blocks: list[int], shared: list[SharedRows]) -> None:
    shape.check("n16", 0)
    assert [block.lanes for block in shared[-1].blocks] == blocks


@pytest.mark.parametrize(
    ("shape", "share"),
    [
        (Convolution(64, 64, inputs=3, outputs=24), 0.685),
        (Convolution(112, 112, inputs=3, outputs=24, strides=(2, 2)), 0.655),
        (Convolution(64, 64, inputs=3, outputs=20), 0.645),
        (Convolution(64, 64, inputs=3, outputs=40), 0.715),
        (Convolution(64, 64, inputs=4, outputs=24), 0.725),
        (Convolution(64, 64, inputs=4, outputs=28), 0.705),
        (Convolution(128, 128, inputs=1, outputs=24, strides=(2, 2)), 0.73),
        (Convolution(144, 144, inputs=1, outputs=16, strides=(2, 2)), 0.655),
        (Convolution(40, 40, inputs=3, outputs=24, kernel=(5, 5), pad=2), 0.815),
        (Convolution(96, 96, inputs=3, outputs=24, kernel=(7, 7), strides=(2, 2), pad=3), 0.815),
    ],
)
def test_cycles(shape: Convolution, share: float) -> None:
    """Cycles are compared with the limit of the array and of the bus."""
    pixels = 1
    for size, taps, step in zip((shape.h, shape.w), shape.kernel, shape.strides, strict=True):
        pixels *= (size + 2 * shape.pad - taps) // step + 1
    weights = shape.outputs * shape.inputs * shape.kernel[0] * shape.kernel[1]
    limit = max(pixels * weights / 256, (shape.h * shape.w * shape.inputs + pixels * shape.outputs) / 16)
    assert limit / shape.cycles() >= share
