"""Sets of positions in a text, as a bit set with an offset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, final

__all__ = ["NO_ENDS", "EndSet"]


@final
class EndSet:
    """An immutable set of positions: bit ``i`` of ``bits`` stands for position ``base + i``.

    Invariant: bit 0 is set, or the set is empty and ``base`` is 0; so equal sets have equal fields.
    """

    __slots__ = ("base", "bits")

    def __init__(self, base: int, bits: int = 1) -> None:
        if not bits & 1:
            zeros = (bits & -bits).bit_length() - 1 if bits else 0
            base, bits = (base + zeros, bits >> zeros) if bits else (0, 0)
        self.base = base
        self.bits = bits

    @classmethod
    def of(cls, positions: list[int]) -> EndSet:
        """The set of ascending positions; O(span)."""
        if not positions:
            return NO_ENDS
        base, top = positions[0], positions[-1]
        digits = bytearray(b"0" * (top - base + 1))
        for position in positions:
            digits[top - position] = 49  # "1"
        return cls(base, int(bytes(digits), 2))

    def __bool__(self) -> bool:
        return self.bits != 0

    def __contains__(self, position: int) -> bool:
        return position >= self.base and self.bits >> (position - self.base) & 1 == 1

    def __iter__(self) -> Iterator[int]:
        """The positions, ascending; O(span)."""
        if self.bits == 1:
            yield self.base
            return
        digits = bin(self.bits)[:1:-1]
        index = digits.find("1")
        while index >= 0:
            yield self.base + index
            index = digits.find("1", index + 1)

    @property
    def last(self) -> int:
        """The greatest position of a set that is not empty."""
        return self.base + self.bits.bit_length() - 1

    def __or__(self, other: EndSet) -> EndSet:
        if not other.bits or self is other:
            return self
        if not self.bits:
            return other
        base = min(self.base, other.base)
        return EndSet(base, self.bits << self.base - base | other.bits << other.base - base)

    def __and__(self, other: EndSet) -> EndSet:
        base = max(self.base, other.base)
        return EndSet(base, (self.bits >> base - self.base) & (other.bits >> base - other.base))

    def __sub__(self, other: EndSet) -> EndSet:
        if not self.bits or not other.bits:
            return self
        shift = other.base - self.base
        removed = other.bits << shift if shift >= 0 else other.bits >> -shift
        return EndSet(self.base, self.bits & ~removed)

    def between(self, low: int, high: int) -> EndSet:
        """The positions from ``low`` to ``high``, both included."""
        if not self.bits or high < low:
            return NO_ENDS
        bits = self.bits & ((1 << high - self.base + 1) - 1) if high >= self.base else 0
        skipped = max(low - self.base, 0)
        return EndSet(self.base + skipped, bits >> skipped)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EndSet) and self.base == other.base and self.bits == other.bits

    def __hash__(self) -> int:
        return hash((self.base, self.bits))

    def __repr__(self) -> str:
        return f"Ends({list(self)})"


NO_ENDS: Final = EndSet(0, 0)
