"""`torch.compile` with the backend "mla": results agree with PyTorch, and reports state what runs where and why."""

import importlib
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

import numpy as np
import pytest

from hw.errors import InputError
from tests.torch.networks import NETWORKS, ResNet18, VisionTransformer
from tests.torch.running import pytree, samples_like

torch: Any = pytest.importorskip(
    "torch", reason="the extra `torch` is not installed: make setup EXTRAS=torch"
)
backend: Any = importlib.import_module("compiler.torch_backend")
nn = torch.nn

TARGET = {"target": "n4"}
SEED = 5


@pytest.fixture(autouse=True)
def fresh():
    """Forget what other tests compiled."""
    torch._dynamo.reset()
    torch.manual_seed(SEED)
    yield
    torch._dynamo.reset()


def compiled(model: Any, **options: Any) -> Any:
    return torch.compile(model, backend="mla", options=TARGET | options)


def leaves(outputs: Any) -> list[np.ndarray]:
    return [leaf.numpy() for leaf in pytree.tree_leaves(outputs)]


def errors(found: Any, wanted: Any) -> list[float]:
    """Return the signal-to-noise ratio of each output in dB."""
    pairs = zip(leaves(found), leaves(wanted), strict=True)
    return [10 * np.log10(np.square(b).sum() / max(np.square(a - b).sum(), 1e-30)) for a, b in pairs]


def reasons() -> list[str]:
    """Return why each captured graph runs in PyTorch; an empty text for a graph on the accelerator."""
    return [each.reason for each in backend.report().graphs]


def resnet18() -> tuple[Any, tuple]:
    return ResNet18(), (torch.zeros(1, 3, 32, 32),)


def vision_transformer() -> tuple[Any, tuple]:
    return VisionTransformer(), (torch.zeros(1, 3, 16, 16),)


MODELS: dict[str, Callable[[], tuple[Any, tuple]]] = {
    "resnet18": resnet18,
    "vision_transformer": vision_transformer,
    "lstm": NETWORKS["lstm"],
    "encoder_layer": NETWORKS["encoder_layer"],
    "several": NETWORKS["several"],
}
#: Minimum signal-to-noise ratio of the outputs in dB, as for exported modules (test_networks.py).
LEAST_SQNR = 30


@pytest.mark.parametrize("name", MODELS)
def test_network_of_the_users_process(name: str) -> None:
    """The first calls run in PyTorch; then, on the same inputs, the error is about the reported one.

    Softmax and normalizations on the accelerator may differ by a step from the kernels with which errors are reported.
    """
    module, example = MODELS[name]()
    module.eval()
    samples = samples_like(example, 2, SEED)
    model = torch.compile(module, backend="mla", options={"target": "n16", "calibration_calls": 2})
    with torch.no_grad():
        for sample in samples:
            assert min(errors(model(*sample), module(*sample))) > 100  # PyTorch's own operators
        found, wanted = leaves(model(*samples[0])), leaves(module(*samples[0]))
    (graph,) = backend.report().graphs
    for each, a, b in zip(graph.quantization.outputs, found, wanted, strict=True):
        assert each.sqnr_db > LEAST_SQNR
        assert np.abs(a - b).max() <= 2 * each.max_abs + 1e-5 * max(1, np.abs(b).max())
    assert graph.reason == "" and graph.layers and not graph.host
    assert not backend.report().breaks
    assert "quantized with 2 samples" in str(backend.report())
    assert f"{graph.layers} layers on the accelerator" in str(graph)


class Broken(nn.Module):
    """A network with a call that PyTorch does not capture, and an operator without a quantized form."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 16, 3), nn.Linear(16, 5)

    def forward(self, x):
        y = torch.relu(self.conv(x)).mean((2, 3))
        print("between the graphs")
        return self.head(torch.sort(y, -1)[0])


def test_graph_breaks_are_reported(capsys) -> None:
    module = Broken().eval()
    model = compiled(module, calibration_calls=2)
    with torch.inference_mode():
        for _ in range(3):
            model(torch.randn(1, 3, 6, 6))
        x = torch.randn(1, 3, 6, 6)
        found, wanted = model(x), module(x)
    assert min(errors(found, wanted)) > 28
    report = backend.report()
    first, second = report.graphs
    assert "forward" in first.source and "test_torch_compile.py" in first.source
    assert first.layers and second.layers
    assert {each.op for each in second.host} == {"top_values"}
    (found_break,) = report.breaks
    assert "test_torch_compile.py" in found_break and "print" in found_break
    assert "1 graph break:" in str(report)
    assert "runs on the host: " in str(second)


def test_first_inputs_calibrate_with_a_warning(caplog) -> None:
    module, (x,) = nn.Linear(8, 4).eval(), samples_like((torch.zeros(2, 8),), 1)[0]
    model = compiled(module)
    with torch.no_grad():
        found, wanted = model(x), module(x)
    assert min(errors(found, wanted)) > 30
    (message,) = [each.getMessage() for each in caplog.records if each.name == "compiler.torch_backend"]
    assert "quantized with the inputs of its first call only" in message and "calibration_calls" in message


def test_changed_weights_are_compiled_again(caplog) -> None:
    module, x = nn.Linear(8, 4).eval(), torch.randn(2, 8)
    model = compiled(module, calibration_calls=1)
    with torch.no_grad():
        model(x)
        assert min(errors(model(x), module(x))) > 30
        module.weight.data.mul_(-3)
        assert min(errors(model(x), module(x))) > 30
        module.load_state_dict(nn.Linear(8, 4).state_dict())
        assert min(errors(model(x), module(x))) > 30
    assert sum("compiled again" in each.getMessage() for each in caplog.records) == 2


def test_each_shape_has_a_network(monkeypatch) -> None:
    monkeypatch.setattr(backend, "MAX_SHAPES", 3)
    module = nn.Linear(8, 4).eval()
    model = compiled(module)
    with torch.no_grad():
        for rows in range(1, backend.MAX_SHAPES + 4):
            x = torch.randn(rows, 8)
            assert min(errors(model(x), module(x))) > 28
    assert reasons() == [""] * (len(reasons()) - 1) + [
        f"its inputs have more than {backend.MAX_SHAPES} combinations of shapes"
    ]


def test_fused_attention_is_separated() -> None:
    module = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    with torch.no_grad():
        for weights in (False, True):
            torch._dynamo.reset()
            x = torch.randn(1, 6, 16)
            model = compiled(lambda y, weights=weights: module(y, y, y, need_weights=weights))
            assert min(errors(model(x)[0], module(x, x, x)[0])) > 28
            assert reasons() == [""]
        torch._dynamo.reset()
        mask = torch.ones(6, 6).triu(1).bool()
        masked = compiled(lambda y: module(y, y, y, need_weights=False, attn_mask=mask)[0])
        wanted = module(x, x, x, need_weights=False, attn_mask=mask)[0]
        assert min(errors(masked(x), wanted)) > 28
        assert all(not why or "set_fastpath_enabled(False)" in why for why in reasons())


def in_place(x: Any) -> Any:
    x += 1
    return x * 2


class Counting(nn.Module):
    """A network that counts its calls in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count += 1
        return x * self.count


#: Models, inputs and the beginning of the reason why they stay in PyTorch.
IN_TORCH: dict[str, tuple[Callable[[], Any], Callable[[], Any], str]] = {
    "training": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).train(),
        lambda: torch.randn(3, 4),
        "aten.batch_norm.default is in training mode: call eval()",
    ),
    "dropout": (
        lambda: nn.Dropout(0.5).train(),
        lambda: torch.randn(3, 4),
        "aten.dropout.default is in training mode: call eval()",
    ),
    "random": (
        lambda: lambda x: x + torch.rand(4),
        lambda: torch.randn(3, 4),
        "aten.rand.default draws random",
    ),
    "input": (lambda: in_place, lambda: torch.randn(3, 4), "it changes l_x_ in place"),
    "buffer": (Counting, lambda: torch.randn(3, 4), "it changes l_self_buffers_count_value in place"),
    "double": (
        lambda: nn.Linear(4, 4).double().eval(),
        lambda: torch.randn(3, 4).double(),
        "it has a tensor of type torch.float64; convert",
    ),
    "bfloat16": (
        lambda: nn.Linear(4, 4).bfloat16().eval(),
        lambda: torch.randn(3, 4).bfloat16(),
        "it has a tensor of type torch.bfloat16; convert",
    ),
    "device": (
        lambda: nn.Linear(4, 4, device="meta").eval(),
        lambda: torch.empty(3, 4, device="meta"),
        "it has tensors on meta; move the model and its inputs to the CPU",
    ),
    "nothing": (
        lambda: lambda x: torch.sort(x)[0],
        lambda: torch.randn(3, 4),
        "no operator of it runs on the accelerator: ",
    ),
}


@pytest.mark.parametrize("name", IN_TORCH)
def test_reason_for_running_in_pytorch(name: str, caplog) -> None:
    make, example, reason = IN_TORCH[name]
    model = make()
    with torch.no_grad():
        result = compiled(model)(example())
    assert [why[: len(reason)] for why in reasons()] == [reason]
    assert result.shape == (3, 4)
    assert any(f"runs in PyTorch: {reason}" in each.getMessage() for each in caplog.records)
    torch._dynamo.reset()
    with torch.no_grad(), pytest.raises(InputError, match=r"^graph 0 \("):
        compiled(make(), strict=True)(example())


def test_gradients_are_computed_by_pytorch() -> None:
    module = nn.Linear(4, 4)
    out = compiled(module)(torch.ones(2, 4))
    out.sum().backward()
    assert module.weight.grad.abs().sum() > 0
    assert reasons() == [
        "gradients are recorded; call the model within torch.no_grad() or torch.inference_mode()"
    ]


def test_autocast_stays_in_pytorch() -> None:
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        out = compiled(nn.Linear(4, 4))(torch.ones(2, 4))
    assert out.dtype == torch.bfloat16
    assert reasons() == ["autocast computes it in another type; call the model outside of torch.autocast"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"targt": "n4"},
            "the backend mla has no option targt; options are target, device, calibration_calls",
        ),
        ({"target": "n5"}, "target must be one of n4"),
        ({"device": "gpu"}, "device must be rtl or golden, not 'gpu'"),
        ({"calibration_calls": -1}, "calibration_calls"),
        ({"calibration_calls": 5000}, "calibration_calls must be at most 1024, not 5000"),
    ],
)
def test_invalid_options(options: dict, message: str) -> None:
    with torch.no_grad(), pytest.raises(Exception, match=message):
        compiled(nn.Linear(4, 4), **options)(torch.ones(2, 4))


def test_mode_is_rejected() -> None:
    with torch.no_grad(), pytest.raises(Exception, match="the backend mla has no mode 'max-autotune'"):
        torch.compile(nn.Linear(4, 4), backend="mla", mode="max-autotune")(torch.ones(2, 4))


def test_simulated_chip_equals_golden_model() -> None:
    module, example = NETWORKS["resnet_block"]()
    module.eval()
    ((x,),) = samples_like(example, 1)
    with torch.no_grad():
        found = []
        for device in ("golden", "rtl"):
            torch._dynamo.reset()
            found.append(compiled(module, device=device)(x).numpy())
            assert reasons() == [""]
    assert np.array_equal(*found)


def test_entry_point_names_the_backend() -> None:
    found = [each for each in entry_points(group="torch_dynamo_backends") if each.name == "mla"]
    if not found:
        pytest.skip("the package was installed before it had this entry point: make setup installs it again")
    assert found[0].load() is backend.mla
