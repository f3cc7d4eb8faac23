"""The repr of each public object is a single short line."""

import numpy as np

from compiler.api import compile
from compiler.runtime.session import Session, dram_bytes
from cosim.golden import GoldenDevice
from tests.support.float_graphs import BLOCK, IMAGE, WITHIN, numbers, samples
from tests.support.graphs import Draft
from tests.support.onnx_models import model, read


def test_repr_is_one_line_with_name_and_size(tmp_path):
    graph = read(tmp_path, model(BLOCK, {"x": numbers(*IMAGE)}, ["y"], WITHIN))
    network = compile(graph, "n8", calibration=samples(IMAGE))
    assert repr(graph) == (
        f"<Graph 'model': {len(graph.nodes)} nodes; 'x' float32[1, 3, 12, 12] -> 'y' float32[1, 10]>"
    )
    layers, programs = len(network.infos), sum(len(code.programs) for code in network.codes)
    assert repr(network) == (
        f"<Network 'model': {layers} layers in {programs} programs for a 8x8 array, {len(network.host)} nodes on the "
        "host; 'x' float32[1, 3, 12, 12] -> 'y' float32[1, 10]>"
    )
    assert repr(network.schedule).startswith(f"<Schedule: {layers} layers, ")
    size = dram_bytes(network)
    with GoldenDevice(network.config, size) as device:
        session = Session(device, network)
        machine = f"<GoldenDevice: 8x8 array, {size:,} bytes of DRAM>"
        assert repr(device) == machine
        assert repr(session) == f"<Session of 'model' on {machine}>"
        assert repr(session.driver) == f"<Driver of {machine}: 256 ring slots, {programs} programs>"


def test_repr_of_many_inputs_and_long_names_is_one_short_line():
    draft = Draft(np.random.default_rng(1))
    inputs = [draft.input((2, 3)) for _ in range(40)]
    graph = draft.graph.finish([inputs[0].name])
    graph.name = "line\nline" * 100
    assert "\n" not in repr(graph) and len(repr(graph)) < 300 and ", ... -> " in repr(graph)
