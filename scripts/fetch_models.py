"""Download of the trained networks to the cache, with a check of their SHA-256: `python -m scripts.fetch_models`."""

import sys

from compiler.bench.tiny import NETWORKS, model_path
from compiler.cli.exit_status import run_to_status


def _all() -> int:
    for name in NETWORKS:
        print(model_path(name))
    return 0


if __name__ == "__main__":
    sys.exit(run_to_status("fetch_models", _all))
