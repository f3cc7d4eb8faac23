"""CRC-32 over 64-bit words, as zlib computes it over their little-endian bytes."""

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

_POLYNOMIAL = 0xEDB88320
_INITIAL = 0xFFFF_FFFF


def _advance(value: int) -> int:
    """What a register of 0 becomes after the 64 bits of `value`, least significant first."""
    state = 0
    for bit in range(64):
        feedback = (state ^ (value >> bit)) & 1
        state = (state >> 1) ^ (_POLYNOMIAL if feedback else 0)
    return state


def _masks() -> list[int]:
    """For each bit of the next state, the bits of the word (with the old state added to its low half) it is
    the parity of.
    """
    return _rows([_advance(1 << bit) for bit in range(64)])


def _rows(columns: list[int]) -> list[int]:
    return [sum(((column >> row) & 1) << bit for bit, column in enumerate(columns)) for row in range(32)]


def _byte_masks() -> list[int]:
    """The same for the next byte and the whole old state."""
    columns = []
    for bit in range(32):
        state = 1 << bit
        for _ in range(8):
            state = (state >> 1) ^ (_POLYNOMIAL if state & 1 else 0)
        columns.append(state)
    return _rows(columns)


class Crc32(wiring.Component):
    """Running CRC-32 (IEEE 802.3) of 64-bit words or bytes.

    Latency: `crc` includes a word in the cycle after `valid`. Throughput: one word per cycle.

    Parameters
    ----------
    bits : int
        Of a word: 64 or 8.

    Members
    -------
    clear : In
        Forget everything; takes precedence over `valid`.
    valid, word : In
        The next word of the image.
    crc : Out
        CRC of the words so far, with the final inversion.
    """

    def __init__(self, bits: int = 64) -> None:
        self._masks = _masks() if bits == 64 else _byte_masks()
        super().__init__({"clear": In(1), "valid": In(1), "word": In(bits), "crc": Out(32)})

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        state = Signal(32, init=_INITIAL)
        mixed, following = Signal(max(len(self.word), 32)), Signal(32)
        m.d.comb += [
            mixed.eq(self.word ^ state),
            following.eq(
                Cat(Cat(mixed[i] for i in range(len(mixed)) if mask >> i & 1).xor() for mask in self._masks)
            ),
            self.crc.eq(~state),
        ]
        with m.If(self.clear | self.valid):
            m.d.sync += state.eq(Mux(self.clear, _INITIAL, following))
        return m
