"""Every relevant difference changes the key, and the distance between similar machines is small."""

import math
import random
from dataclasses import fields, replace

import numpy as np
import pytest

from compiler.api import compile
from compiler.cache.digest import shape_of
from compiler.ir.graph import Graph
from compiler.layers.base import Layer
from compiler.options import DramTiming
from compiler.profile.measurement import HardwareProfile
from compiler.tuning_db import entries
from compiler.tuning_db.entries import EntryKey, options_of, subgraph_of
from compiler.tuning_db.machines import distance
from hw.config import MlaConfig, load_target
from hw.errors import InputError
from tests.support.graphs import Draft
from tests.support.trained_networks import NETWORKS, model
from tests.tuning_db import random_entries

N16 = load_target("n16")


def layers(seed: int = 0, *, rename: bool = False, shape: tuple[int, int] = (12, 8)) -> list[Layer]:
    """Return two dense layers and an addition; with `rename`, all names are different."""
    draft = Draft(np.random.default_rng(seed))
    draft.count = 7 if rename else 0
    out, depth = shape
    x = draft.input((1, depth))
    hidden = draft.node("dense", [x, draft.constant((out, depth))], (1, out))
    other = draft.node("dense", [x, draft.constant((out, depth))], (1, out))
    draft.graph.finish([draft.node("add", [hidden, other], (1, out)).name])
    return list(compile(draft.graph, "n8").layers)


def test_names_and_weights_are_part_of_a_subgraph_and_not_of_its_shape():
    one = layers()
    assert subgraph_of(one) == subgraph_of(layers()) and shape_of(one) == shape_of(layers())
    heavier = [replace(each, weights=each.weights + 1) if hasattr(each, "weights") else each for each in one]  # type: ignore[attr-defined, call-arg]
    for other in (layers(rename=True), heavier):
        assert subgraph_of(one) != subgraph_of(other)
        assert shape_of(one) == shape_of(other)
    for other in (layers(shape=(12, 9)), layers(shape=(13, 8)), one[:-1], one[::-1]):
        assert subgraph_of(one) != subgraph_of(other) and shape_of(one) != shape_of(other)


def test_connections_are_part_of_a_shape():
    first, *_ = layers()
    there = first.shapes | {"z": first.shapes[first.x]}
    chain = [first, replace(first, name="b", nodes=("b",), x=first.y, y="z", shapes=there)]
    apart = [first, replace(first, name="b", nodes=("b",), x="w", y="z", shapes=there)]
    assert shape_of(chain) != shape_of(apart)


def test_zero_points_are_not_part_of_a_shape():
    for layer in layers():
        for item in fields(layer):
            if item.name.endswith("_zp") and getattr(layer, item.name):
                other = replace(layer, **{item.name: getattr(layer, item.name) + 3})
                assert shape_of([other]) == shape_of([layer])


def test_every_other_field_of_a_layer_is_part_of_its_shape():
    for layer in layers():
        found = [shape_of([layer])]
        for item in fields(layer):
            if item.name.endswith("_zp"):
                continue
            value = getattr(layer, item.name)
            if isinstance(value, int):
                found.append(shape_of([replace(layer, **{item.name: value + 1})]))
            elif isinstance(value, tuple) and value and isinstance(value[0], int):
                found.append(shape_of([replace(layer, **{item.name: tuple(each + 1 for each in value)})]))
        found.append(shape_of([replace(layer, ops=("other",))]))
        assert len(found) == len(set(found)) > 3


def test_a_common_scale_is_part_of_a_shape():
    (layer, *_) = (each for each in layers() if hasattr(each, "drain"))
    drain = layer.drain  # type: ignore[attr-defined]
    plain = [replace(layer, drain=replace(drain, mult=np.full_like(drain.mult, n))) for n in (3, 4)]  # type: ignore[call-arg]
    mixed = replace(layer, drain=replace(drain, mult=np.arange(drain.mult.size) + 1))  # type: ignore[call-arg]
    assert shape_of([plain[0]]) == shape_of([plain[1]]) != shape_of([mixed])


@pytest.mark.parametrize("name", NETWORKS)
def test_layers_of_networks_have_keys(name):
    network = compile(model(name), cache=False)
    assert isinstance(network.graph, Graph)
    names = {subgraph_of([layer]) for layer in network.layers} | {subgraph_of(network.graph)}
    assert len(names) == len(network.layers) + 1
    assert 1 < len({shape_of([layer]) for layer in network.layers}) <= len(network.layers)


def test_options_are_part_of_the_key(monkeypatch):
    found = {options_of(), options_of(batch=1), options_of(batch=2), options_of(rounding="xnnpack", batch=1)}
    found |= {options_of(batch=1.0), options_of(batch=True), options_of(batch="1")}
    monkeypatch.setattr(entries, "KEY_VERSION", "another")
    assert len(found | {options_of(batch=1)}) == 8
    assert options_of(a=1, b=2) == options_of(b=2, a=1)


@pytest.mark.parametrize(
    "bad", ["", "a" * 63, "g" * 64, "A" * 64, "a" * 65, "a" * 64 + "\n", 7, None, b"a" * 64]
)
def test_invalid_digests_are_rejected(bad):
    with pytest.raises(InputError, match="profile must be a SHA-256 in hexadecimal"):
        EntryKey("a" * 64, bad, "b" * 64)


def test_equal_conditions_have_equal_keys():
    same = {HardwareProfile(N16, DramTiming(100, rate)).key for rate in (None, 16, 16.0, np.float64(16))}
    assert len(same) == 1 and same == {HardwareProfile(N16).key}
    others = {HardwareProfile(N16, DramTiming(101)).key, HardwareProfile(N16, DramTiming(100, 8)).key}
    for item in fields(MlaConfig):
        value = getattr(N16, item.name)
        if value > 1 and item.name != "fuse_rate":
            changed = replace(N16, **{item.name: value // 2})
            others.add(HardwareProfile(changed, DramTiming(100, 16)).key)
    assert len(others | same) == 3 + 20


@pytest.mark.parametrize("seed", [1])
def test_distance_is_a_metric(seed):
    print(f"seed {seed}")
    rng = random.Random(seed)
    made = [random_entries.conditions(rng) for _ in range(25)]
    for a in made:
        for b in made:
            assert distance(a, b) == distance(b, a) and (distance(a, b) == 0) == (a.key == b.key)
            for c in made:
                assert distance(a, c) <= distance(a, b) + distance(b, c) + 1e-9


def test_distance_reflects_effects_on_schedules():
    here = HardwareProfile(N16)
    latency, rate = HardwareProfile(N16, DramTiming(400)), HardwareProfile(N16, DramTiming(100, 4.0))
    memory = HardwareProfile(replace(N16, sp_bytes=64 << 10))
    segments = HardwareProfile(replace(N16, segments=16))
    assert [distance(here, each) for each in (latency, rate, memory)] == pytest.approx([2, 2, 2])
    assert 0 < distance(here, segments) < 1 < distance(here, latency)
    assert distance(here, HardwareProfile(replace(N16, n=8))) >= 4 > distance(here, latency)
    # The rate is relative to the lanes: n = 8 with one beat per cycle has the same rate as n = 16 with one.
    assert distance(here, HardwareProfile(replace(N16, n=8))) == 4
    assert math.isclose(distance(here, HardwareProfile(N16, DramTiming(100, 15.9))), math.log2(16 / 15.9))


def test_width_of_the_bus_is_part_of_a_machine():
    """A bus of n bytes has the key of machines without the option; one of 2 * n bytes has another key and distance."""
    here, wide = HardwareProfile(N16), HardwareProfile(replace(N16, bus_bytes=32))
    assert here.key == HardwareProfile(replace(N16, bus_bytes=16)).key != wide.key
    assert wide.key == HardwareProfile(wide.config, DramTiming(100, 32.0)).key
    slow = HardwareProfile(wide.config, DramTiming(100, 16.0))
    assert distance(here, slow) == 0.125 and distance(here, wide) == 1.125


def test_machines_without_options_have_a_distance():
    plain = HardwareProfile(replace(N16, packed_loads=0, wide=0, sparse=0))
    assert distance(HardwareProfile(N16), plain) == 3 * 0.125
