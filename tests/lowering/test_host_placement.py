"""Nodes that run on the host by request or by cost: outputs remain equal, and reports name the nodes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler.api import compile
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization
from compiler.options import DEFAULT_HOST_COSTS, HostCosts, read_host_costs
from compiler.tuning.calibration.collect import measure_host_costs
from hw.errors import InputError
from tests.support.graphs import Draft

POINT: dict[str, Any] = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "groups": 1}


def network() -> tuple[Draft, Graph]:
    """Return a convolution of an image, a large dense layer, and a small one."""
    draft = Draft(np.random.default_rng(5))
    x = draft.input((1, 6, 6, 16))
    weights = Quantization.per_tensor(0.01)
    y = draft.node("conv2d", [x, draft.constant((16, 1, 1, 16), quantization=weights)], x.shape, **POINT)
    flat = draft.node("reshape", [y], (1, 576), like=y, shape=(1, 576))
    z = draft.node("dense", [flat, draft.constant((512, 576), quantization=weights)], (1, 512))
    last = draft.node("dense", [z, draft.constant((8, 512), quantization=weights)], (1, 8))
    return draft, draft.graph.finish([last.name])


def test_costs_decide_by_the_clock() -> None:
    """At 10 MHz, weights of the dense layers take longer to load than the host computes; at 1 GHz, they do not."""
    _, graph = network()
    costs = replace(DEFAULT_HOST_COSTS, clock=10.0)
    slow = compile(graph, "n4", enable=["place_on_host"], host_costs=costs)
    moved = [each for each in slow.rewritten if each.name == "place_on_host"]
    assert moved and {each.op for each in moved} == {"dense"}
    assert "at 10 MHz" in moved[0].change and {each.node for each in moved} <= {
        each.node for each in slow.host
    }
    fast = compile(graph, "n4", enable=["place_on_host"], host_costs=replace(costs, clock=1000.0))
    assert not fast.rewritten and not fast.host
    assert not compile(graph, "n4", host_costs=costs).host  # the pass is off by default
    assert not compile(graph, "n4", enable=["place_on_host"], host_costs=costs, strict=True).host
    kept = compile(graph, "n4", enable=["place_on_host"], host_costs=costs, keep_on_accelerator=["dense"])
    assert not kept.host


def test_results_are_equal_on_both_sides() -> None:
    draft, graph = network()
    inputs = list(draft.random_inputs().values())
    (wanted,) = compile(graph, "n4")(*inputs).values()
    costs = replace(DEFAULT_HOST_COSTS, clock=10.0)
    for options in (
        {"host": ["dense"]},
        {"host": ["conv2d"]},
        {"enable": ["place_on_host"], "host_costs": costs},
    ):
        made = compile(graph, "n4", **options)  # type: ignore[arg-type]
        assert made.host
        (found,) = made(*inputs).values()
        np.testing.assert_array_equal(found, wanted)


def test_names_must_exist() -> None:
    _, graph = network()
    with pytest.raises(InputError, match="no node and no operator 'dens' to run on the host"):
        compile(graph, "n4", host=["dens"])
    with pytest.raises(InputError, match="cannot be on the host and on the accelerator"):
        compile(graph, "n4", host=["dense"], keep_on_accelerator=["dense"])


def test_measured_costs_are_read_and_damaged_ones_rejected(tmp_path: Path) -> None:
    costs, path = measure_host_costs(4, 50.0, networks=12), tmp_path / "host.json"
    assert costs.operators and all(min(each) >= 0 for _, *each in costs.operators)
    values = {name: getattr(costs, name) for name in ("operators", "other", "stage", "clock")}
    path.write_text(json.dumps(values))
    assert read_host_costs(path) == costs
    assert read_host_costs(tmp_path / "missing.json") == DEFAULT_HOST_COSTS
    negative = values | {"operators": [["add", -1, 2, 3]]}
    for wrong in ("", "[]", "{}", json.dumps(values | {"clock": 0}), json.dumps(negative)):
        path.write_text(wrong)
        with pytest.raises(InputError, match="contains no costs of the host"):
            read_host_costs(path)


def test_costs_of_unknown_operators() -> None:
    costs = HostCosts((("add", 10.0, 2.0, 1.0),), (100.0, 1.0, 0.0))
    assert costs.microseconds("add", 1000, 500) == 12.5 and costs.microseconds("mul", 1000, 0) == 101.0
