"""Ten networks with one known bottleneck each, for the study of search strategies."""

from dataclasses import dataclass

from compiler.options import DEFAULT_DRAM, DramTiming
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp

_SLOW, _LATE = DramTiming(bytes_per_cycle=1.0), DramTiming(latency=1000)


@dataclass(frozen=True)
class StrategyCase:
    """Network whose bottleneck is known from its shape or its conditions.

    Parameters
    ----------
    network : CalibrationNetwork
        Network with one layer, or with two layers.
    right : frozenset of str
        Classes of strategies that act on the bottleneck.
    dram : DramTiming
        Timing of the DRAM.
    """

    network: CalibrationNetwork
    right: frozenset[str]
    dram: DramTiming = DEFAULT_DRAM


def _case(shape: tuple[int, int, int], ops: str, right: str, dram: DramTiming = DEFAULT_DRAM) -> StrategyCase:
    made = []
    for text in ops.split("; "):
        op, *numbers = text.split()
        made.append(CalibrationOp(op, *map(int, numbers)))
    return StrategyCase(CalibrationNetwork(shape, tuple(made)), frozenset(right.split()), dram)


#: Networks, fixed before the table of strategies (compiler/tuning/strategies.py) was written.
CASES = {
    "one input channel": _case((12, 12, 1), "conv 16 3", "layout"),
    "deep and small image": _case((3, 3, 64), "conv 32 3", "tiling layout"),
    "pointwise, late memory": _case((12, 12, 16), "conv 16 1", "prefetch split", _LATE),
    "3x3, late memory": _case((10, 10, 16), "conv 16 3", "prefetch split", _LATE),
    "pointwise, slow memory": _case((12, 12, 16), "conv 32 1", "tiling fuse", _SLOW),
    "3x3, slow memory": _case((12, 12, 12), "conv 24 3", "tiling fuse", _SLOW),
    "dense, slow memory": _case((1, 1, 120), "dense 100", "tiling batch fuse", _SLOW),
    "dense, late memory": _case((1, 1, 64), "dense 100", "prefetch split", _LATE),
    "pool": _case((15, 15, 24), "max_pool 0 3 2", "tiling split"),
    "depthwise": _case((12, 12, 24), "depthwise 0 3", "layout tiling"),
}
