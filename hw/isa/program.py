"""Micro-program: its words, and its file format."""

import struct
import zlib
from dataclasses import dataclass, field

MAGIC = b"MLAP"
VERSION = 1
MAX_TEXT = (1 << 16) - 1
"""Maximum total size in bytes of name, zero byte and signature."""
_HEADER = struct.Struct("<4sHHI")


@dataclass(frozen=True)
class Program:
    """An assembled micro-program.

    Parameters
    ----------
    name : str
        Name of the program in messages.
    words : tuple of int
        Micro-instructions as 64-bit words.
    signature : str
        Text of the `.signature` lines: operands, semaphores, and memory regions that are live at entry and exit.
    lines : tuple of int
        Line number of each word in the source text, from 1 on; empty if unknown. Files do not contain line numbers, and
        the comparison of programs ignores them.
    """

    name: str
    words: tuple[int, ...]
    signature: str = ""
    lines: tuple[int, ...] = field(default=(), compare=False, repr=False)

    @property
    def image(self) -> bytes:
        """The words as stored in memory, little endian."""
        return struct.pack(f"<{len(self.words)}Q", *self.words)

    @property
    def crc(self) -> int:
        """CRC-32 (IEEE 802.3) of the image, which the hardware checks."""
        return zlib.crc32(self.image)

    def to_bytes(self) -> bytes:
        """Encode the program as a file; raise ValueError if name and signature are too long for the format."""
        text = f"{self.name}\0{self.signature}".encode()
        if len(text) > MAX_TEXT:
            raise ValueError(
                f"name and signature must be at most {MAX_TEXT - 1} bytes together, not {len(text) - 1}"
            )
        body = _HEADER.pack(MAGIC, VERSION, len(text), len(self.words)) + text + self.image
        return body + struct.pack("<I", zlib.crc32(body))

    @staticmethod
    def from_bytes(data: bytes) -> "Program":
        """Decode the contents of a file; raise ValueError with a description if they are invalid."""
        if len(data) < _HEADER.size + 4 or data[:4] != MAGIC:
            raise ValueError("not a micro-program file (it must begin with MLAP)")
        _, version, text_length, count = _HEADER.unpack_from(data)
        if version != VERSION:
            raise ValueError(f"micro-program file version must be {VERSION}, not {version}")
        expected = _HEADER.size + text_length + 8 * count + 4
        if len(data) != expected:
            raise ValueError(f"micro-program file must be {expected} bytes long, not {len(data)}")
        if zlib.crc32(data[:-4]) != struct.unpack("<I", data[-4:])[0]:
            raise ValueError("micro-program file is damaged: its CRC does not match")
        try:
            name, signature = data[_HEADER.size : _HEADER.size + text_length].decode().split("\0", 1)
        except ValueError as error:
            raise ValueError("micro-program file is damaged: its name cannot be read") from error
        return Program(name, struct.unpack_from(f"<{count}Q", data, _HEADER.size + text_length), signature)
