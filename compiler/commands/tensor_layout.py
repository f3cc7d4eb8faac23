"""Layout of a network tensor in memory between layers."""

from dataclasses import dataclass, replace

from compiler.commands.commands import BufferMemory, BufferRef, CircularBuffer


@dataclass(frozen=True)
class TensorLayout:
    """An image (h, w, c) in DRAM or in the scratchpad.

    Parameters
    ----------
    ring : CircularBuffer
        Buffer that holds all of the tensor.
    h, w, c : int
        Height, width, channels; a matrix is rows x 1 x columns.
    pixel, row : int
        Distance of two pixels and of two image rows, in bytes.
    offset : int
        Bytes from the ring's start to the first pixel.
    plane : int
        Channels of a tile of the ring, if each has a block of channels by itself; 0: pixels are whole.
    """

    ring: CircularBuffer
    h: int
    w: int
    c: int
    pixel: int
    row: int
    offset: int = 0
    plane: int = 0

    @property
    def on_chip(self) -> bool:
        """True if the tensor is in the scratchpad."""
        return self.ring.memory == BufferMemory.SP

    def compact(self, size: int) -> bool:
        """Its elements, of so many bytes, follow one another without gaps."""
        return self.pixel == self.c * size and (self.h == 1 or self.row == self.w * self.pixel)

    @property
    def even(self) -> bool:
        """From the last pixel of a row to the first of the next it is as far as from pixel to pixel."""
        return self.h == 1 or self.row == self.w * self.pixel

    def parts(self, count: int) -> list["TensorLayout"]:
        """Images of a batch, each by itself."""
        rows = self.h // count
        return [replace(self, h=rows, offset=self.offset + i * rows * self.row) for i in range(count)]

    def columns(self, start: int, count: int) -> "TensorLayout":
        """Some columns of it as an image."""
        return replace(self, w=count, offset=self.offset + start * self.pixel)

    def to(self, element: int, size: int) -> int:
        """Bytes from the first element to another, by its number in the tensor; `size` is that of an element."""
        pixel, channel = divmod(element, self.c)
        return pixel * self.pixel + channel * size

    def at(self, row: int = 0, column: int = 0, channel: int = 0) -> BufferRef:
        """Address of an element."""
        tile, channel = divmod(channel, self.plane) if self.plane else (0, channel)
        return BufferRef(self.ring, tile, self.offset + row * self.row + column * self.pixel + channel)

    def block(self, size: int) -> int:
        """Bytes from a block of channels, of so many bytes, to the next."""
        return self.ring.size if self.plane else size


def whole(memory: BufferMemory, name: str, h: int, w: int, c: int, slack: int = 0) -> TensorLayout:
    """A fresh home for an image without gaps; `slack` bytes behind it may be read but mean nothing."""
    return TensorLayout(CircularBuffer(memory, name, h * w * c + slack), h, w, c, c, w * c)
