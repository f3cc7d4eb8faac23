"""How much of a machine's memories a network may use."""

from dataclasses import dataclass, fields, replace

from compiler.ir.identity import identity
from hw.config import MlaConfig
from hw.errors import InputError


@identity("Limits", "sp_bytes", "acc_bytes", "dram_bytes")
@dataclass(frozen=True)
class Limits:
    """Bytes at most; None: all there are.

    Parameters
    ----------
    sp_bytes, acc_bytes : int or None
        Of scratchpad and accumulator, from address 0 on. As both have powers of two, the next lower one counts.
    dram_bytes : int or None
        Of the model's memory: weights, and what passes through DRAM; inputs and outputs are the caller's.
    """

    sp_bytes: int | None = None
    acc_bytes: int | None = None
    dram_bytes: int | None = None

    def within(self, config: MlaConfig) -> MlaConfig:
        """The part of a machine that may be used; its banks are as large as the machine's, if two of them may be used.

        Raises
        ------
        InputError
            It is less than any machine has.
        """
        for item in fields(self)[:2]:
            limit, whole = getattr(self, item.name), getattr(config, item.name)
            if limit is not None and limit < whole:
                config = _cut(config, item.name, limit)
        return config

    def check(self, memory: int) -> None:
        """Refuse a network that needs so many bytes of DRAM.

        Raises
        ------
        InputError
            They are more than the limit.
        """
        if self.dram_bytes is not None and memory > self.dram_bytes:
            raise InputError(f"it needs {memory:,} bytes of DRAM: the limit is {self.dram_bytes:,}")


#: All there is.
NONE = Limits()


def _cut(config: MlaConfig, name: str, limit: int) -> MlaConfig:
    """A machine with less of one memory."""
    banks = name.replace("bytes", "banks")
    bank = getattr(config, name) // getattr(config, banks)
    size = 1 << max(limit, 1).bit_length() - 1
    try:
        return replace(config, **{name: size, banks: min(getattr(config, banks), max(size // bank, 2))})
    except InputError:
        least = (16 if name == "sp_bytes" else 64) * config.n * 2
        memory = "scratchpad" if name == "sp_bytes" else "accumulator"
        raise InputError(
            f"the limit of the {memory} must be at least {least:,} bytes, not {limit:,}"
        ) from None
