"""Model of the scratchpad at a port of the unit under test."""

import random
from typing import Any


class SpPort:
    """Register in which the scratchpad holds a request until it is granted.

    Parameters
    ----------
    port : SpReadPort or SpWritePort
        The unit's port.
    rng : random.Random
        Source of the random refusals.
    refuse : float
        Probability that a waiting request is refused in a cycle.
    """

    def __init__(self, port: Any, rng: random.Random, refuse: float = 0.0):
        self.port, self._rng, self._refuse = port, rng, refuse
        self._fields = [
            name
            for name in ("addr", "data", "mask", "pair", "next", "next_mask")
            if name in port.signature.members
        ]
        if not hasattr(port, "mask"):
            self._fields = [name for name in self._fields if name not in ("data", "next")]
        self.waits: tuple[int, ...] | None = None
        self._ready = True

    def drive(self, ctx: Any) -> None:
        """Set `waits` and `ready` for this cycle."""
        self._ready = self.waits is None or self._rng.random() >= self._refuse
        ctx.set(self.port.waits, self.waits is not None)
        ctx.set(self.port.ready, self._ready)

    def granted(self, ctx: Any) -> tuple[int, ...] | None:
        """Return the request granted in this cycle, and accept the next one.

        It is (addr), (addr, pair), (addr, data, mask), (addr, data, mask, pair, next) or (addr, data, mask, pair,
        next, next_mask).
        """
        granted = self.waits if self._ready else None
        if self._ready:
            offered = ctx.get(self.port.valid)
            self.waits = (
                tuple(ctx.get(getattr(self.port, name)) for name in self._fields) if offered else None
            )
        return granted
