"""The DRAM that serving needs."""

from compiler.network import Network
from compiler.serve.arena import PAGE
from compiler.serve.versions import coded
from hw.isa.macro_instruction import SLOT_BYTES

RING_SLOTS = 256
#: Requests on their way at most.
FLIGHTS = 4
#: Versions whose memory is in DRAM at the same time, at least, if they need as much as the first.
VERSIONS = 4


def serving_bytes(network: Network, flights: int = FLIGHTS, versions: int = VERSIONS) -> int:
    """DRAM that a server of a network needs."""
    io = sum(t.bytes + 64 for stage in coded(network) for t in (*stage.inputs, *stage.outputs))
    memory = PAGE + sum(code.memory + 64 for code in network.codes)
    program = 8 * network.config.wis_words
    total = RING_SLOTS * SLOT_BYTES + 2 * PAGE + program + flights * io + versions * memory
    return -(-total // PAGE) * PAGE
