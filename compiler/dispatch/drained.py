"""Whether the statistics of the last FUSE command of a stage are those of all of a tensor."""

from math import prod

from compiler.codegen.making import Making
from compiler.ir.tensor import Tensor
from cosim.golden.command import unpack_fields
from hw.config import MlaConfig
from hw.isa.commands import FUSE_DIMS
from hw.isa.enums import Unit


def at_once(config: MlaConfig, making: Making, tensor: Tensor) -> bool:
    """Whether one command, the last of FUSE, writes every element of the tensor that a stage ends with, once."""
    layers = [number for number, layer in enumerate(making.lowered.layers) if layer.y == tensor.name]
    drains = [command for command in making.issued if command.unit == Unit.FUSE]
    if not drains or [c.layer for c in drains if c.layer in layers] != [drains[-1].layer]:
        return False
    c = unpack_fields(Unit.FUSE, list(drains[-1].values))
    lanes = c.lanes or config.n
    steps = {dim: getattr(c, f"{dim}_count") for dim in FUSE_DIMS}
    whole = prod(steps.values()) * lanes
    if c.tail_dim < len(FUSE_DIMS):
        whole -= whole // lanes // steps[FUSE_DIMS[c.tail_dim]] * (lanes - (c.lanes_tail or config.n))
    return not c.reduce and not c.lane_reduce and whole == tensor.elements
