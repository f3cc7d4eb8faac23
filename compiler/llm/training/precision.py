"""What the products of training are calculated in."""

from contextlib import AbstractContextManager, nullcontext

import torch  # pyright: ignore[reportMissingImports]  an extra

#: What a processor has that multiplies bfloat16 faster than float32.
_BFLOAT16 = ("amx_bf16", "avx512_bf16")


def products(device: torch.device) -> AbstractContextManager[object]:
    """Within it matrix products take bfloat16 where that is faster; weights stay float32.

    Parameters
    ----------
    device : torch.device
        What calculates.
    """
    if device.type == "cpu" and multiplies_bfloat16():
        return torch.autocast("cpu", torch.bfloat16)
    return nullcontext()


def multiplies_bfloat16() -> bool:
    """Whether this processor does."""
    found = torch.cpu.get_capabilities()
    return any(found.get(name) for name in _BFLOAT16)
