"""Seeds of random tests."""

import os


def random_seed() -> int:
    """Return the seed in the environment variable `MLA_SEED` or, if it is unset, a random one; print it."""
    seed = int(os.environ.get("MLA_SEED", "0")) or int.from_bytes(os.urandom(4), "little")
    print(f"MLA_SEED={seed}")
    return seed
