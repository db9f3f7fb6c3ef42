"""The keys and values of sequences, shared by those that begin alike."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, NamedTuple, final
from weakref import WeakSet

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.models.llama.network import LlamaShape

__all__ = ["KeyValues", "Link", "Segment"]

_FIRST_CAPACITY: Final = 32
_COPIED: Final = 32
"""A fork copies what lies after the last shared segment where that is shorter: many short segments cost more to attend
to than they save."""
_ALONE: Final = 4
"""A sequence that was alone in so many passes, one after the other, copies what it shares: attending to one segment is
quicker than to several, by so much that as many passes pay for the copy."""
_NOWHERE: Final = sys.maxsize


@final
class Segment:
    """The keys and values of a stretch of tokens.

    Sequences that hold a prefix of it see the same entries; what all but one of them see never changes.

    Attributes:
        entries: ``[layers, 2, key_value_heads, capacity, head_width]``, the keys before the values.
        holders: the sequences that hold a prefix of it.
    """

    def __init__(self, entries: torch.Tensor) -> None:
        self.entries = entries
        self.holders: WeakSet[KeyValues] = WeakSet()

    @property
    def is_shared(self) -> bool:
        """Whether more than one sequence holds it."""
        return len(self.holders) > 1


class Link(NamedTuple):
    """A prefix of a segment.

    Attributes:
        segment: see above.
        length: how many of its tokens.
    """

    segment: Segment
    length: int


@final
class KeyValues:
    """The keys and values of one sequence: a chain of prefixes of segments.

    A fork holds the same segments, so that what several sequences have in common is in memory once.  At most one of
    those that hold a segment writes to it, and only after what the others hold of it; the others go on in segments of
    their own.  Where one alone is left, it writes anywhere, and what lies after is joined to it.

    A forward pass writes after ``length``, and only its caller moves ``length``, so a pass that is interrupted leaves
    no trace, and what a pass has looked ahead at is there until something else is written.  Sequences that share
    segments may be used by different threads.

    Args:
        shape: of the network.
        device: where to keep them.
        dtype: of the entries.
    """

    def __init__(self, shape: LlamaShape, *, device: torch.device, dtype: torch.dtype) -> None:
        self._shape = shape
        self._device = device
        self._dtype = dtype
        self._links: list[Link] = []
        # From here on entries of the last segment are seen by no other sequence, nor written.
        self._writable_from = _NOWHERE
        self._passes_alone = 0

    @property
    def links(self) -> tuple[Link, ...]:
        """What holds the tokens, in their order."""
        return tuple(self._links)

    @property
    def length(self) -> int:
        """How many tokens."""
        return sum(link.length for link in self._links)

    def reserve(self, count: int, *, alone: bool) -> None:
        """Make room for ``count`` tokens after the last link, and let no other sequence have it.

        A capacity at least doubles, so growth costs O(1) a token.

        Args:
            count: see above.
            alone: whether the tokens are run in a pass without those of other sequences.
        """
        self._passes_alone = self._passes_alone + 1 if alone else 0
        if self._passes_alone > _ALONE:
            self.unshare()
        self._join()
        if not self._may_write():
            self._begin_segment()
        segment, length = self._links[-1]
        self._grow(segment, length, length + count)

    def advance(self, count: int) -> None:
        """Take over ``count`` tokens that were written to the reserved room."""
        segment, length = self._links[-1]
        self._links[-1] = Link(segment, length + count)

    def keep(self, entries: Sequence[int]) -> None:
        """Take over some of the tokens that were written to the reserved room; those between them are overwritten.

        Args:
            entries: which, counted from the first that was not taken over; ascending.
        """
        segment, length = self._links[-1]
        there = next((at for at, entry in enumerate(entries) if at != entry), len(entries))
        if there < len(entries):
            moved = torch.tensor([length + entry for entry in entries[there:]], device=self._device)
            place = segment.entries[..., length + there : length + len(entries), :]
            place.copy_(segment.entries.index_select(3, moved))  # selecting copies, so the places may overlap
        self.advance(len(entries))

    def truncate(self, length: int) -> None:
        """Drop all tokens from position ``length`` on, which no other sequence notices; O(segments)."""
        excess = self.length - length
        while self._links and excess >= self._links[-1].length:
            excess -= self._release().length
        if excess:
            segment, held = self._links[-1]
            self._links[-1] = Link(segment, held - excess)

    def fork(self) -> KeyValues:
        """Return an independent sequence with the same tokens; O(1) but for a bounded number of entries."""
        copy = KeyValues(self._shape, device=self._device, dtype=self._dtype)
        links, own = self._links, None
        if links and links[-1].length < _COPIED:
            *links, own = links
        elif self._may_write():
            self._writable_from = links[-1].length
        for link in links:
            copy._hold(link)
        if own is not None:
            copy._begin_segment()
            copy._links[-1] = copy._written(copy._links[-1], [own])
        return copy

    def unshare(self) -> None:
        """Copy all that is shared, into one segment; O(length)."""
        if len(self._links) > 1 or (self._links and not self._may_write()):
            self._merge(0, Link(Segment(self._room(0)), 0), self._links)

    def _may_write(self) -> bool:
        if not self._links:
            return False
        segment, length = self._links[-1]
        return length >= self._writable_from or not segment.is_shared

    def _hold(self, link: Link) -> None:
        link.segment.holders.add(self)
        self._links.append(link)
        self._writable_from = _NOWHERE

    def _release(self) -> Link:
        link = self._links.pop()
        link.segment.holders.discard(self)
        self._writable_from = _NOWHERE
        return link

    def _begin_segment(self) -> None:
        self._hold(Link(Segment(self._room(0)), 0))

    def _join(self) -> None:
        """Copy all that lies after a segment that is no longer shared into that segment."""
        unshared = (index for index, link in enumerate(self._links[:-1]) if not link.segment.is_shared)
        first = next(unshared, None)
        if first is not None:
            self._merge(first, self._links[first], self._links[first + 1 :])

    def _merge(self, first: int, into: Link, links: list[Link]) -> None:
        """Put ``into`` in the place of all links from index ``first`` on, and ``links`` after it."""
        merged = self._written(into, links)
        into.segment.holders.add(self)
        # The links change in one step, so that an interruption while entries are copied leaves no trace.
        self._links = [*self._links[:first], merged]
        self._writable_from = 0
        for link in links:
            link.segment.holders.discard(self)

    def _written(self, into: Link, links: list[Link]) -> Link:
        """Copy tokens of other segments after those of ``into``."""
        segment, length = into
        self._grow(segment, length, length + sum(link.length for link in links))
        for link in links:
            segment.entries[..., length : length + link.length, :] = link.segment.entries[..., : link.length, :]
            length += link.length
        return Link(segment, length)

    def _grow(self, segment: Segment, used: int, length: int) -> None:
        capacity = segment.entries.shape[3]
        if length > capacity:
            room = self._room(max(length, min(max(2 * capacity, _FIRST_CAPACITY), self._shape.max_context)))
            room[..., :used, :] = segment.entries[..., :used, :]
            segment.entries = room

    def _room(self, capacity: int) -> torch.Tensor:
        shape = self._shape
        size = (shape.layers, 2, shape.key_value_heads, capacity, shape.head_width)
        return torch.empty(size, device=self._device, dtype=self._dtype)
