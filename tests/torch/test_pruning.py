"""Pruning of PyTorch modules, with training that keeps the pruned weights zero."""

from typing import Any

import numpy as np
import pytest

import compiler
from hw.errors import InputError
from scripts.networks.digits import load_digits_split
from tests.quantize.test_pruning import is_2_of_4

torch: Any = pytest.importorskip(
    "torch", reason="the extra `torch` is not installed: make setup EXTRAS=torch"
)
nn = torch.nn


def digits() -> tuple[Any, Any, Any, Any]:
    train, held = load_digits_split()
    parts = [torch.from_numpy(each.images.astype(np.float32) / 16) for each in (train, held)]
    labels = [torch.from_numpy(each.labels.astype(np.int64)) for each in (train, held)]
    return parts[0], labels[0], parts[1], labels[1]


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def fit(module: nn.Module, epochs: int) -> None:
    x, y, _, _ = digits()
    optimizer = torch.optim.Adam(module.parameters(), 2e-3, weight_decay=1e-4)
    module.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x[batch]), y[batch]).backward()
            optimizer.step()
    module.eval()


def accuracy(module: nn.Module) -> float:
    _, _, x, y = digits()
    with torch.no_grad():
        return float((module(x).argmax(1) == y).double().mean())


def last(weight: Any) -> np.ndarray:
    """Return weights with the inputs last."""
    array = weight.detach().numpy()
    return array if array.ndim == 2 else array.transpose(0, 2, 3, 1)


def test_digits_with_two_of_four_weights() -> None:
    module = network()
    fit(module, 12)
    before = accuracy(module)
    x = digits()[0]
    made = compiler.prune(module, "2:4", samples=x[:200], train=lambda each: fit(each, 6))
    after = accuracy(module)
    print(f"dense {before:.3f}, 2:4 {after:.3f}")
    assert made is module and after >= before - 0.01
    layers = [each for each in module if isinstance(each, nn.Conv2d | nn.Linear)]
    assert all(isinstance(each.weight, nn.Parameter) for each in layers)
    assert all(is_2_of_4(last(each.weight)) for each in layers[1:])
    assert np.count_nonzero(last(layers[0].weight)) == 144  # of one input


def test_tiles_without_training() -> None:
    module = network()
    compiler.prune(module, "tiles", share=0.5, tile=16, keep=["7"])
    weights = last(module[5].weight).reshape(4, 16, 32, 16)
    assert (weights != 0).any((1, 3)).mean() == 0.5
    assert np.count_nonzero(last(module[7].weight)) == 640


def test_layers_of_a_container_are_kept() -> None:
    module = nn.Sequential(nn.Sequential(nn.Linear(64, 32), nn.ReLU()), nn.Linear(32, 10))
    compiler.prune(module, "2:4", keep=["0"])
    assert np.count_nonzero(last(module[0][0].weight)) == 2048
    assert is_2_of_4(last(module[1].weight))
    with pytest.raises(InputError, match=r"to prune; '0\.0' has a name in keep; '1' has a name in keep"):
        compiler.prune(module, "2:4", keep=["0", "1"])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"samples": 4}, "samples must be a tensor, a tuple of tensors or a list of these, not 4"),
        ({"samples": torch.zeros(2, 3)}, "samples: the module does not accept them"),
        ({"train": 3}, "train must be a function, not 3"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        compiler.prune(nn.Sequential(nn.Linear(64, 32)), "2:4", **arguments)


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_samples_that_are_not_finite(value: float) -> None:
    x = torch.zeros(4, 1, 8, 8)
    x[2, 0, 1, 1] = value
    with pytest.raises(InputError, match="samples: the input of '0' must be finite"):
        compiler.prune(network(), "2:4", samples=x)
