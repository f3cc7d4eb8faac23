"""Tests of the pre-training on graphs of public models, and of the tracing of modules."""

from pathlib import Path

import pytest

from compiler.llm.data.examples import CORPUS
from compiler.llm.data.held_out import is_validation
from compiler.llm.data.model_graphs import (
    GraphLayer,
    ModelGraphs,
    NetworkGraph,
    is_validation_family,
    read_graphs,
)
from compiler.llm.data.trajectories import read
from compiler.llm.model.numpy_transformer import TransformerShape
from compiler.llm.tokens.vocabulary import LANGUAGE
from compiler.llm.training.loop import Recipe, validation_loss
from compiler.llm.training.pretrain import Plan, graph_stage, run_stages, train
from compiler.llm.training.torch_transformer import TorchTransformer
from hw.errors import InputError

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed: make setup EXTRAS=torch")

SHAPE = TransformerShape(len(LANGUAGE), width=32, heads=2, layers=2, hidden=48, context=192)


def _few(graphs: ModelGraphs) -> list[NetworkGraph]:
    families = sorted(graphs.origins, key=lambda family: not is_validation_family(family))
    chosen = {*families[:2], *families[-4:]}
    return [network for network in graphs.networks if network.family in chosen][:40]


def test_training_on_graphs_reduces_the_loss_of_other_families(tmp_path: Path) -> None:
    networks, recipe = _few(read_graphs()), Recipe(20, batch=4, rate=1e-2)
    stage = graph_stage(recipe, networks, SHAPE.context)
    validation = [example for network in stage.validation for example in network.every]
    assert {each.prompt_length for each in validation} == {1}
    module = TorchTransformer(SHAPE)
    before = validation_loss(module, validation, recipe)
    curves = run_stages(module, {"graphs": stage}, tmp_path, lambda _text: None)
    assert curves["graphs"][-1][1] < before - 1
    with pytest.raises(InputError, match="too few for training"):
        run_stages(module, {"graphs": graph_stage(recipe, [], SHAPE.context)}, tmp_path, lambda _text: None)


def test_graphs_are_the_first_stage_of_training(tmp_path: Path) -> None:
    trajectories = [trajectory for trajectory in read(CORPUS) if trajectory.machine == "usual"]
    chosen = [*[each for each in trajectories if not is_validation(each)][:2]]
    chosen += [each for each in trajectories if is_validation(each)][:2]
    plan = Plan(SHAPE, Recipe(1, batch=2), Recipe(0), graphs=Recipe(1, batch=2))
    found = train(chosen, plan, tmp_path, graphs=_few(read_graphs()))
    assert list(found.about["loss"]) == ["graphs", "first"]


def test_traced_layers_of_a_convolutional_network() -> None:
    from scripts.llm_graph_tracing import trace

    with torch.device("meta"):
        block = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, 2, 1),
            torch.nn.BatchNorm2d(8),
            torch.nn.SiLU(),
            torch.nn.Conv2d(8, 8, 3, 1, 1, groups=8),
        ).eval()
        x = torch.empty(1, 3, 16, 12)
    assert trace(block, x, inputs=[x]) == [
        GraphLayer("conv", (16, 12, 3), (8, 6, 8), (3, 3), (2, 2), table=True),
        GraphLayer("depthwise", (8, 6, 8), (8, 6, 8), (3, 3)),
    ]
    found = trace(lambda x: block[0](x) + block[3](block[0](x)), x, inputs=[x])
    assert [layer.word for layer in found] == ["conv", "conv", "depthwise"]
    assert [layer.residual for layer in found] == [False, False, True]


def test_traced_layers_of_a_transformer() -> None:
    from scripts.llm_graph_tracing import UnsupportedGraphError, trace

    with torch.device("meta"):
        module = torch.nn.MultiheadAttention(32, 4, batch_first=True).eval()
        norm, x = torch.nn.LayerNorm(32), torch.empty(1, 10, 32)
    found = trace(lambda x: norm(x + module(x, x, x, need_weights=False)[0]), x, inputs=[x])
    assert [layer.word for layer in found] == ["conv", "matmul", "softmax", "matmul", "conv", "norm"]
    assert found[0].y == (10, 1, 96) and found[1].x == (10, 8, 10) and found[1].groups == 4
    assert found[4].residual
    with pytest.raises(UnsupportedGraphError, match="topk"):
        trace(lambda x: x.topk(3).values, x, inputs=[x])
