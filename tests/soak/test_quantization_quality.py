"""Quality of quantized float networks on samples that calibration has not seen (`make soak`)."""

import pytest

from compiler.bench.float_networks import FLOAT_NETWORKS
from scripts.quantization_quality import quality

#: Least signal-to-noise ratios in dB with int8 and with int16 activations: measured values minus 2 to 3 dB.
LEAST = {
    "mobilenet_v2": (15, 25),
    "efficientnet_lite": (16, 24),
    "resnet": (18, 30),
    "squeezenet": (11, 22),
    "convnext": (19, 32),
    "vit_tiny": (11, 29),
    "mlp_mixer": (11, 33),
    "unet": (26, 34),
    "text_recognizer": (5, 16),
    "voice_detector": (19, 28),
    "whole_norms": (12, 22),
    "keyword_spotting": (25, 53),
    "anomaly_detection": (40, 52),
}


@pytest.mark.parametrize("name", FLOAT_NETWORKS)
def test_quality_on_fresh_samples(name: str) -> None:
    network = FLOAT_NETWORKS[name]()
    for least, int16 in zip(LEAST[name], ((), ("all",)), strict=True):
        assert quality(network, int16=int16).sqnr_db >= least
