"""The keys and values of sequences, which share those of a common prefix; and the part of one in a forward pass."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, final
from weakref import WeakSet

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.models.llama.network import LlamaShape
    from structgen.models.protocol import Mixture
    from structgen.models.protocol.tree import TokenTree

__all__ = ["KeyValues", "Link", "Part", "Segment"]


_FIRST_CAPACITY: Final = 32
_COPIED: Final = 32
"""A fork copies the entries after the last shared segment if they are fewer: attention over many short segments costs
more than they save."""
_ALONE: Final = 4
"""A sequence that was alone in this many consecutive passes copies its shared entries: attention over one segment is
faster than over several, and this many passes pay for the copy."""
_NOWHERE: Final = sys.maxsize


@final
class Segment:
    """The keys and values of a range of tokens.

    Sequences that hold a prefix of the segment share its entries; entries of more than one sequence never change.

    Attributes:
        entries: ``[layers, 2, key_value_heads, capacity, head_width]``, the keys before the values.
        holders: the sequences that hold a prefix.
    """

    def __init__(self, entries: torch.Tensor) -> None:
        self.entries = entries
        self.holders: WeakSet[KeyValues] = WeakSet()

    @property
    def is_shared(self) -> bool:
        """Whether more than one sequence holds the segment."""
        return len(self.holders) > 1


class Link(NamedTuple):
    """A prefix of a segment.

    Attributes:
        segment: the segment.
        length: number of its first tokens.
    """

    segment: Segment
    length: int


@final
class KeyValues:
    """The keys and values of one sequence: a chain of prefixes of segments.

    A fork holds the same segments, so common prefixes are in memory once.  At most one of the sequences that hold a
    segment writes to it, and only after the entries of the others; the others continue in segments of their own.  The
    last remaining sequence may write anywhere, and its later segments are joined to this one.

    A forward pass writes after ``length``, and only its caller advances ``length``.  So an interrupted pass leaves no
    trace, and the entries of a tree remain until they are overwritten.  Sequences that share segments may be used by
    different threads.

    Args:
        shape: the shape of the network.
        device: the device of the entries.
        dtype: the dtype of the entries.
    """

    def __init__(self, shape: LlamaShape, *, device: torch.device, dtype: torch.dtype) -> None:
        self._shape = shape
        self._device = device
        self._dtype = dtype
        self._links: list[Link] = []
        # From here on, no other sequence reads or writes entries of the last segment.
        self._writable_from = _NOWHERE
        self._passes_alone = 0

    @property
    def links(self) -> tuple[Link, ...]:
        """The prefixes of segments that hold the tokens, in order."""
        return tuple(self._links)

    @property
    def length(self) -> int:
        """Number of tokens."""
        return sum(link.length for link in self._links)

    def reserve(self, count: int, *, alone: bool) -> None:
        """Reserve capacity for ``count`` tokens after the last link, for this sequence only.

        The capacity at least doubles, so growth costs O(1) per token.

        Args:
            count: number of tokens.
            alone: whether the pass runs no tokens of other sequences.
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
        """Append ``count`` tokens that were written to the reserved capacity."""
        segment, length = self._links[-1]
        self._links[-1] = Link(segment, length + count)

    def keep(self, entries: Sequence[int]) -> None:
        """Append some of the tokens that were written to the reserved capacity; those between them are overwritten.

        Args:
            entries: ascending indices, counted from ``length``.
        """
        segment, length = self._links[-1]
        there = next((at for at, entry in enumerate(entries) if at != entry), len(entries))
        if there < len(entries):
            moved = torch.tensor([length + entry for entry in entries[there:]], device=self._device)
            target = segment.entries[..., length + there : length + len(entries), :]
            target.copy_(segment.entries.index_select(3, moved))  # selecting copies, so the ranges may overlap
        self.advance(len(entries))

    def truncate(self, length: int) -> None:
        """Drop all tokens from position ``length`` on, for this sequence only; O(segments)."""
        excess = self.length - length
        while self._links and excess >= self._links[-1].length:
            excess -= self._release().length
        if excess:
            segment, held = self._links[-1]
            self._links[-1] = Link(segment, held - excess)

    def fork(self) -> KeyValues:
        """Return an independent sequence with the same tokens; O(1) plus a bounded number of copied entries."""
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
        """Copy all shared entries into one segment; O(length)."""
        if len(self._links) > 1 or (self._links and not self._may_write()):
            self._merge(0, Link(Segment(self._allocated(0)), 0), self._links)

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
        self._hold(Link(Segment(self._allocated(0)), 0))

    def _join(self) -> None:
        """Copy all entries after a segment that is no longer shared into that segment."""
        unshared = (index for index, link in enumerate(self._links[:-1]) if not link.segment.is_shared)
        first = next(unshared, None)
        if first is not None:
            self._merge(first, self._links[first], self._links[first + 1 :])

    def _merge(self, first: int, into: Link, links: list[Link]) -> None:
        """Replace all links from index ``first`` on by ``into``, with the entries of ``links`` after it."""
        merged = self._written(into, links)
        into.segment.holders.add(self)
        # The links change in one step: an interruption while entries are copied leaves no trace.
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
            entries = self._allocated(max(length, min(max(2 * capacity, _FIRST_CAPACITY), self._shape.max_context)))
            entries[..., :used, :] = segment.entries[..., :used, :]
            segment.entries = entries

    def _allocated(self, capacity: int) -> torch.Tensor:
        shape = self._shape
        size = (shape.layers, 2, shape.key_value_heads, capacity, shape.head_width)
        return torch.empty(size, device=self._device, dtype=self._dtype)


class Part(NamedTuple):
    """The part of one sequence in a forward pass.

    Attributes:
        token_ids: the new tokens, at least one.
        cache: the keys and values of the earlier tokens.
        all_positions: whether to return logits after every token or only after the last.
        mixtures: mixtures that replace the tokens, equally many; None for the tokens themselves.
        tree: a tree after the tokens, with logits after each of its tokens; or None.
    """

    token_ids: Sequence[int]
    cache: KeyValues
    all_positions: bool
    mixtures: Sequence[Mixture] | None = None
    tree: TokenTree | None = None

    @property
    def start(self) -> int:
        """The position of the first token, and of its cache entry."""
        return self.cache.length

    @property
    def rows(self) -> int:
        """Number of tokens in the pass, those of the tree included."""
        return len(self.token_ids) + (0 if self.tree is None else len(self.tree.token_ids))

    @property
    def end(self) -> int:
        """End of the new cache entries; without a tree also the position after the last token."""
        return self.cache.length + self.rows

    @property
    def ids(self) -> Sequence[int]:
        """The tokens in the pass, those of the tree last."""
        return self.token_ids if self.tree is None else [*self.token_ids, *self.tree.token_ids]

    @property
    def positions(self) -> Sequence[int]:
        """The position of each token in the pass."""
        start, end = self.start, self.start + len(self.token_ids)
        positions = range(start, end)
        return positions if self.tree is None else [*positions, *(end + depth for depth in self.tree.depths())]

    @property
    def logits_rows(self) -> int:
        """Number of last tokens of the pass after which logits are returned."""
        return self.rows if self.all_positions else 1 + self.rows - len(self.token_ids)
