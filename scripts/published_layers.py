"""Layers of published networks, which are not used for calibration, and measurements under random schedules."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from compiler.ir.identity import restored, stored
from compiler.options import CompileOptions, DramTiming
from compiler.profile.measurement import HardwareProfile, Measurement
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from compiler.tuning.calibration.collect import change_fusion
from compiler.tuning.layer_space import spaces_of
from compiler.tuning.measure.measurer import Measurer
from hw.config import MlaConfig, load_target
from hw.errors import InputError
from scripts.jsonl_log import JsonlLog


def _layer(shape: tuple[int, int, int], *op: Any) -> CalibrationNetwork:
    return CalibrationNetwork(shape, (CalibrationOp(*op),))


def _pair(shape: tuple[int, int, int], *ops: tuple[Any, ...]) -> CalibrationNetwork:
    return CalibrationNetwork(shape, tuple(CalibrationOp(*op) for op in ops))


#: Layers of published networks; the list was fixed before any of them was measured.
PUBLISHED_LAYERS = {
    "mobilenet_v1_025_96 first": _layer((96, 96, 3), "conv", 8, 3, 2),
    "mobilenet_v1_025_96 pointwise": _layer((24, 24, 16), "conv", 32, 1),
    "mobilenet_v1_025_96 deep pointwise": _layer((6, 6, 128), "conv", 128, 1),
    "mobilenet_v1_025 average": _layer((7, 7, 256), "mean"),
    "mobilenet_v2_035 expansion": _layer((14, 14, 24), "conv", 144, 1),
    "mobilenet_v2_035 projection": _layer((7, 7, 336), "conv", 56, 1),
    "mobilenet_v2 depthwise strided": _layer((28, 28, 144), "depthwise", 0, 3, 2),
    "mobilenet_v2_050 depthwise": _layer((14, 14, 192), "depthwise", 0, 3),
    "efficientnet_b0 depthwise": _layer((14, 14, 480), "depthwise", 0, 5),
    "efficientnet_b0 depthwise strided": _layer((14, 14, 672), "depthwise", 0, 5, 2),
    "efficientnet_b0 squeeze": _layer((1, 1, 480), "dense", 20),
    "efficientnet_b0 excite": _layer((1, 1, 20), "dense", 480),
    "resnet20 first stage": _layer((32, 32, 16), "conv", 16, 3),
    "resnet20 strided": _layer((32, 32, 16), "conv", 32, 3, 2),
    "resnet20 last stage": _layer((8, 8, 64), "conv", 64, 3),
    "resnet20 addition": _layer((16, 16, 32), "add"),
    "squeezenet11 squeeze": _layer((27, 27, 128), "conv", 32, 1),
    "squeezenet11 expand": _layer((13, 13, 48), "conv", 192, 1),
    "squeezenet11 pool": _layer((27, 27, 128), "max_pool", 0, 3, 2),
    "lenet5 first": _layer((28, 28, 1), "conv", 6, 5),
    "lenet5 dense": _layer((1, 1, 400), "dense", 120),
    "ds_cnn depthwise": _layer((25, 5, 64), "depthwise", 0, 3),
    "ds_cnn pointwise": _layer((25, 5, 64), "conv", 64, 1),
    "shufflenet_v2 depthwise": _layer((28, 28, 58), "depthwise", 0, 3),
    "shufflenet_v1 groups": _layer((14, 14, 480), "conv", 120, 1, 1, 3),
    "densenet121 growth": _layer((7, 7, 128), "conv", 32, 3),
    "ad01 first": _layer((1, 1, 640), "dense", 128),
    "bert_tiny feed-forward": _layer((32, 1, 128), "dense", 512),
    "bert_tiny softmax": _layer((32, 2, 32), "softmax"),
    "vit_tiny norm": _layer((7, 7, 192), "norm"),
}
#: Layers that were fixed and measured after the tile pipeline, the static compiler and the models were finished. (While
#: these were improved, errors on PUBLISHED_LAYERS had been looked at.)
CONFIRMATION_LAYERS = {
    "mobilenet_v3_small expansion": _layer((14, 14, 40), "conv", 120, 1),
    "mobilenet_v3_small depthwise": _layer((14, 14, 120), "depthwise", 0, 5),
    "mobilenet_v3_small projection": _layer((7, 7, 288), "conv", 96, 1),
    "mnasnet depthwise strided": _layer((28, 28, 72), "depthwise", 0, 5, 2),
    "googlenet reduction": _layer((14, 14, 480), "conv", 16, 1),
    "googlenet 5x5": _layer((14, 14, 16), "conv", 48, 5),
    "googlenet pool": _layer((14, 14, 480), "max_pool", 0, 3, 2),
    "resnet8 shortcut": _layer((32, 32, 16), "conv", 32, 1, 2),
    "vgg cifar": _layer((8, 8, 96), "conv", 96, 3),
    "alexnet cifar pool": _layer((24, 24, 64), "max_pool", 0, 3, 2),
    "lstm gates": _layer((1, 1, 256), "dense", 256),
    "bert_tiny projection": _layer((64, 1, 128), "dense", 128),
    "bert_tiny norm": _layer((64, 1, 128), "norm"),
    "transformer softmax": _layer((16, 4, 64), "softmax"),
    "unet first": _layer((64, 64, 1), "conv", 16, 3),
}
#: Pairs of adjacent operators of published networks, which the compiler may execute together; the list was fixed before
#: any of them was measured.
FUSED_PAIRS = {
    "resnet20 end of a block": _pair((16, 16, 32), ("conv", 32, 3), ("add",)),
    "mobilenet_v2_035 projection and addition": _pair((14, 14, 96), ("conv", 24, 1), ("add",)),
    "vgg cifar convolution and pool": _pair((16, 16, 32), ("conv", 32, 3), ("max_pool", 0, 2, 2)),
    "lenet5 convolution and pool": _pair((28, 28, 1), ("conv", 6, 5), ("avg_pool", 0, 2, 2)),
    "mobilenet_v1_025_96 separable": _pair((24, 24, 16), ("depthwise", 0, 3), ("conv", 32, 1)),
    "mobilenet_v2_035 expansion and depthwise": _pair((14, 14, 24), ("conv", 144, 1), ("depthwise", 0, 3)),
    "bert_tiny scores": _pair((32, 1, 64), ("matmul", 32), ("softmax",)),
    "bert_tiny classifier": _pair((1, 1, 128), ("dense", 64), ("softmax",)),
    "bert_tiny output and norm": _pair((32, 1, 128), ("dense", 128), ("norm",)),
    "bert_tiny feed-forward with gelu": _pair((32, 1, 128), ("dense", 256), ("gelu",)),
    "ds_cnn pointwise and average": _pair((25, 5, 64), ("conv", 64, 1), ("mean",)),
    "lstm gate": _pair((1, 1, 256), ("dense", 128), ("tanh",)),
}
#: Layers of published networks with weights in formats that need fewer cycles or bytes than int8.
FORMAT_LAYERS = {
    f"{name}, {weights}": _layer(shape, kind, size, window, 1, 1, weights)
    for name, shape, kind, size, window in (
        ("resnet50 3x3", (14, 14, 64), "conv", 64, 3),
        ("resnet50 pointwise", (7, 7, 256), "conv", 128, 1),
        ("bert_tiny feed-forward", (32, 1, 256), "dense", 256, 1),
        ("lstm gates", (1, 1, 512), "dense", 256, 1),
    )
    for weights in ("int4", "packed", "2:4", "zero tiles")
}
#: Latency in cycles and share of the full bandwidth of each memory.
MEMORIES = {
    "usual": (100, 1.0),
    "bandwidth / 4": (100, 0.25),
    "latency 400": (400, 1.0),
    "latency 1000": (1000, 1.0),
}
#: Number of random schedules per layer, and maximum number of changes after a draw.
RANDOM_SCHEDULES, _MAX_CHANGES = 10, 2
#: Share of the random schedules of a pair in which the fusion of its layers is changed.
_FUSED = 0.5
_MAX_ATTEMPTS = 50


def network_of(layer: str) -> CalibrationNetwork:
    """Return the network of a name in PUBLISHED_LAYERS, CONFIRMATION_LAYERS, FUSED_PAIRS or FORMAT_LAYERS."""
    return (PUBLISHED_LAYERS | CONFIRMATION_LAYERS | FUSED_PAIRS | FORMAT_LAYERS)[layer]


def memory(config: MlaConfig, name: str) -> DramTiming:
    """Return the timing of a memory in MEMORIES for a machine."""
    latency, share = MEMORIES[name]
    return DramTiming(latency, None if share == 1.0 else config.n * share)


@dataclass(frozen=True)
class MeasuredSchedule:
    """Measured schedule of a published layer.

    Parameters
    ----------
    target, memory, layer : str
        Names of the target, of the memory in MEMORIES, and of the layer (`network_of`).
    static : bool
        True for the static compiler's schedule, False for a random one.
    schedule : Schedule
        Schedule that was measured.
    cycles : int
        Measured cycles on the RTL.
    energy_uj : float
        Energy in microjoules, from counters of the RTL.
    conflicts : int
        Number of accesses that a memory bank refused.
    """

    target: str
    memory: str
    layer: str
    static: bool
    schedule: Schedule
    cycles: int
    energy_uj: float
    conflicts: int

    @property
    def conditions(self) -> HardwareProfile:
        """Hardware profile of the measurement."""
        config = load_target(self.target)
        return HardwareProfile(config, memory(config, self.memory))


class PublishedMeasurements:
    """Measurements of the published layers in a JSONL file, which is extended by what is missing.

    Parameters
    ----------
    file : Path
        Path of the file with the measurements.
    """

    def __init__(self, file: Path):
        self._log = JsonlLog(file)
        self._known = [_read(data) for data in self._log.read()]

    def of(self, target: str, memory_name: str, layer: str) -> list[MeasuredSchedule]:
        """Return the measurements of a layer: that of the static compiler's schedule first, then the random ones.

        Random schedules are drawn once; the schedule of the static compiler is measured again if it has changed.
        """
        config = load_target(target)
        conditions = HardwareProfile(config, memory(config, memory_name))
        known = [
            each
            for each in self._known
            if (each.target, each.memory, each.layer) == (target, memory_name, layer)
        ]
        drawn = [each for each in known if not each.static]
        graph = network_of(layer).graph()
        with Measurer(graph, conditions, CompileOptions(rounding="reference")) as measurer:
            first = measurer.first.schedule
            text = first.to_json()
            static = [each for each in known if each.static and each.schedule.to_json() == text]
            wanted = [] if static else [(True, first)]
            if not drawn:
                wanted += [(False, each) for each in _draws(measurer, f"{target} {memory_name} {layer}")]
            results = measurer.measure([schedule for _, schedule in wanted])
            for (is_static, schedule), result in zip(wanted, results, strict=True):
                if isinstance(result, Measurement) and result.exact:
                    found = MeasuredSchedule(
                        target,
                        memory_name,
                        layer,
                        is_static,
                        schedule,
                        result.cycles,
                        result.energy_uj,
                        result.conflicts,
                    )
                    self._log.add(_line(found))
                    self._known.append(found)
                    (static if is_static else drawn).append(found)
        return static[:1] + drawn


def _draws(measurer: Measurer, seed: str) -> Iterator[Schedule]:
    """Yield distinct random schedules of a network with a few layers, which compile."""
    rng, first = random.Random(seed), measurer.first.schedule
    conditions, stages = measurer.conditions, measurer.prepared.lowered(first.fusions)
    spaces = spaces_of(conditions.config, stages, conditions.dram)
    seen = {first.to_json()}
    for _ in range(_MAX_ATTEMPTS):
        layers = dict(first.layers)
        for name, space in spaces.items():
            layers[name] = space.draw(rng, layers[name])
            for _ in range(rng.randint(0, _MAX_CHANGES)):
                layers[name] = space.change(rng, layers[name])
        if len(layers) > 1 and rng.random() < _FUSED:
            layers |= change_fusion(rng, layers)
        schedule = replace(first, layers=layers)
        if schedule.to_json() in seen:
            continue
        seen.add(schedule.to_json())
        try:
            measurer.prepared.network(schedule)
        except InputError:  # the schedule does not fit
            continue
        yield schedule
        if len(seen) > RANDOM_SCHEDULES:
            return


def _line(found: MeasuredSchedule) -> dict[str, Any]:
    return {
        "target": found.target,
        "memory": found.memory,
        "layer": found.layer,
        "static": found.static,
        "fusions": found.schedule.fusions,
        "schedules": {name: stored(each) for name, each in found.schedule.layers.items()},
        "cycles": found.cycles,
        "energy_uj": found.energy_uj,
        "conflicts": found.conflicts,
    }


def _read(data: dict[str, Any]) -> MeasuredSchedule:
    layers = {name: restored(LayerSchedule, fields) for name, fields in data["schedules"].items()}
    fusions = tuple(tuple(each) for each in data["fusions"])
    return MeasuredSchedule(
        data["target"],
        data["memory"],
        data["layer"],
        data["static"],
        Schedule(fusions, layers),
        data["cycles"],
        data["energy_uj"],
        data["conflicts"],
    )
