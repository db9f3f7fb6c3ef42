"""A set of byte strings, one of which is to be written."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import final

__all__ = ["Options", "successor"]


@final
class Options:
    """Byte strings in order.

    Args:
        members: in any order, repeated or not.
    """

    __slots__ = ("_members", "members")

    def __init__(self, members: Iterable[bytes]) -> None:
        self._members = frozenset(members)
        self.members = tuple(sorted(self._members))

    def __len__(self) -> int:
        return len(self.members)

    def __contains__(self, option: object) -> bool:
        return option in self._members

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Options) and self._members == other._members

    def __hash__(self) -> int:
        return hash(self._members)  # a frozenset keeps its hash

    def begins(self, beginning: bytes) -> bool:
        """Whether some option begins so; O(log n)."""
        index = bisect_left(self.members, beginning)
        return index < len(self.members) and self.members[index].startswith(beginning)

    def after(self, beginning: bytes) -> Iterator[bytes]:
        """What is left of each option that begins so."""
        for index in range(bisect_left(self.members, beginning), len(self.members)):
            if not self.members[index].startswith(beginning):
                return
            yield self.members[index][len(beginning) :]


def successor(beginning: bytes) -> bytes | None:
    """The least byte string that is greater than all that begin so; None where there is none."""
    stripped = beginning.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None
