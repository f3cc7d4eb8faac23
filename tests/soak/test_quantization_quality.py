"""Quality of quantized float networks on samples that calibration has not seen (`make soak`)."""

import pytest

from compiler.bench.float_networks import FLOAT_NETWORKS
from compiler.bench.quantization_quality import quality

#: Least signal-to-noise ratios in dB with int8 and with int16 activations: measured values minus 2 dB.
LEAST: dict[str, tuple[float, float]] = {}


@pytest.mark.parametrize("name", FLOAT_NETWORKS)
def test_quality_on_fresh_samples(name: str) -> None:
    network = FLOAT_NETWORKS[name]()
    for least, int16 in zip(LEAST[name], ((), ("all",)), strict=True):
        assert quality(network, int16=int16).sqnr_db >= least
