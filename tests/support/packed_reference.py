"""Reference decoder of packed weights, which reads them bit by bit as docs/machine.md defines them."""


def unpacked(line: bytes, groups: int, n: int) -> list[int]:
    """Return the unsigned bytes that a line of packed weights expands to."""
    at, out = 0, []

    def byte(index: int) -> int:
        return line[index] if index < len(line) else 0

    for _ in range(groups):
        header, at = byte(at), at + 1
        for width in (min(header % 16, 8), min(header // 16, 8)):
            for lane in range(n):
                value = 0
                for bit in range(width):
                    place = lane * width + bit
                    value += (byte(at + place // 8) // 2 ** (place % 8)) % 2 * 2**bit
                out.append((value - 2**width if width and value >= 2 ** (width - 1) else value) % 256)
            at += (n * width + 7) // 8
    return out
