"""Cycles of other accelerators of the same size for the same work, as published or measured.

All figures are for a 16x16 array with 256 KiB of scratchpad, 64 KiB of accumulator and a bus of 16 bytes per cycle,
unless noted. Sources:

* Gemmini: its generated RTL (a build of 2022/23) in Verilator with its library's tiling, without a processor,
  latency 40 or 100, layer by layer, outputs compared with a C reference
* SCALE-Sim 3.0: the model, weight stationary, unlimited bandwidth
* NVDLA: the performance estimator in nvdla/doc, 256 multipliers
* MLPerf Tiny v1.1: published results of FPGA submissions
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Peer:
    """Name of an accelerator and its cycles."""

    name: str
    cycles: int


#: Best published figure of a case, by suite and name.
PEERS: dict[str, dict[str, Peer]] = {
    "gemm": {
        "64x64x64": Peer("Gemmini", 2_392),
        "128x128x128": Peer("Gemmini", 10_885),
        "512x512x512": Peer("Gemmini", 531_701),
        "12544x256x64": Peer("Gemmini", 971_097),
        "12544x64x256": Peer("Gemmini", 810_687),
        "3136x512x128": Peer("Gemmini", 807_378),
        "3136x128x512": Peer("Gemmini", 810_632),
        "784x1024x256": Peer("Gemmini", 814_190),
    },
    "nets": {
        "resnet50": Peer("NVDLA-256, modelled", 21_700_000),
        "mobilenet_v1": Peer("SCALE-Sim, modelled", 5_100_000),
        "mobilenet_v2": Peer("SCALE-Sim, modelled", 4_400_000),
        "bert_layer": Peer("Gemmini, matrices alone", 3_740_000),
    },
    "tiny": {
        "pretrainedResnet_quant": Peer("MLPerf Tiny, a pipeline for this network", 58_800),
        "kws_ref_model": Peer("MLPerf Tiny", 46_300),
        "vww_96_int8": Peer("MLPerf Tiny", 74_500),
        "ad01_int8": Peer("Gemmini", 36_700),
    },
}


def peer_of(suite: str, name: str) -> Peer | None:
    """Return the best published figure of a case, or None."""
    return PEERS.get(suite, {}).get(name)
