"""Bit fields: named values packed into words."""

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Field:
    """A named value of an encoding.

    Parameters
    ----------
    name : str
        Name used in assembly text and in layouts.
    width : int
        Width of the field in bits.
    signed : bool
        True for a two's complement number.
    default : int
        Value at the start of every macro-instruction.
    doc : str
        One-line description for the reference page.
    enum : tuple of str
        Names of the values 0, 1, 2 ... if the field is an enumeration.
    """

    name: str
    width: int
    signed: bool = False
    default: int = 0
    doc: str = ""
    enum: tuple[str, ...] = ()

    @property
    def low(self) -> int:
        """Minimum legal value of the field."""
        return -(1 << (self.width - 1)) if self.signed else 0

    @property
    def high(self) -> int:
        """Maximum legal value of the field."""
        return (1 << (self.width - self.signed)) - 1

    def truncate(self, value: int) -> int:
        """Return the value that the hardware stores for `value`: its low bits, sign-extended if the field is
        signed.
        """
        bits = value & ((1 << self.width) - 1)
        if self.signed and bits >> (self.width - 1):
            bits -= 1 << self.width
        return bits

    def check(self, value: int, where: str) -> int:
        """Return `value` unchanged, or raise ValueError, which states the field's name and range, if it is out of
        range.
        """
        if not self.low <= value <= self.high:
            raise ValueError(f"{where}{self.name} must be in {self.low}..{self.high}, not {value!r}")
        return value


@dataclass(frozen=True)
class Packed:
    """Fields packed into one word, least significant first."""

    name: str
    fields: tuple[Field, ...]

    @property
    def width(self) -> int:
        """Total width in bits."""
        return sum(f.width for f in self.fields)

    def offset(self, name: str) -> int:
        """Return the position of the named field's least significant bit."""
        position = 0
        for field in self.fields:
            if field.name == name:
                return position
            position += field.width
        raise ValueError(
            f"{self.name} has no field {name!r}; fields: {', '.join(f.name for f in self.fields)}"
        )

    @cached_property
    def _places(self) -> dict[str, tuple[Field, int, int, int]]:
        """Field, position, minimum and maximum value by name."""
        places, position = {}, 0
        for field in self.fields:
            places[field.name] = field, position, field.low, field.high
            position += field.width
        return places

    @cached_property
    def _defaults(self) -> int:
        """Word in which all fields have their defaults."""
        return self._joined({field.name: field.default for field in self.fields})

    def _joined(self, values: dict[str, int]) -> int:
        """Return a word with the given fields; all other bits are 0."""
        word = 0
        for name, value in values.items():
            field, position, low, high = self._places[name]
            if not low <= value <= high:
                field.check(value, f"{self.name}.")
            word |= (value & ((1 << field.width) - 1)) << position
        return word

    def pack(self, **values: int) -> int:
        """Return a word with the given fields; all other fields have their defaults."""
        unknown = values.keys() - self._places.keys()
        if unknown:
            self.offset(min(unknown))
        kept = self._defaults
        for name in values if kept else ():
            field, position, _, _ = self._places[name]
            kept &= ~(((1 << field.width) - 1) << position)
        return kept | self._joined(values)

    def unpack(self, word: int) -> dict[str, int]:
        """Return the values of all fields of `word`."""
        return {
            name: field.truncate(word >> position) for name, (field, position, _, _) in self._places.items()
        }
