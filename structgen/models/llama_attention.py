"""Attention of the sequences of one forward pass over their caches.

A lone sequence attends as usual.  Several attend to each segment that they share together, all their queries in one
product, and to the rest each to its own; what a query finds in one place and in another is weighted by how much of
all attention each place draws, which is exact up to rounding.

Source: Juravsky et al. 2024, "Hydragen: High-Throughput LLM Inference with Shared Prefixes" (arXiv 2402.05099).
"""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, final

import torch
import torch.nn.functional as F  # noqa: N812  # the name that every torch text uses

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from structgen.models.llama_cache import KeyValues, Segment
    from structgen.models.llama_network import LlamaShape

__all__ = ["Attention", "Part", "attend", "attention"]

_WORTHWHILE: Final = 256
"""A stretch is attended to together where its length times its sequences is at least this: a product for all of them
costs as much as copying so many entries for each of them."""
_SHORT: Final = 64
"""Up to so many entries of a sequence of its own are copied beside those of the others, and attended to with them."""


class Part(NamedTuple):
    """What one sequence brings to a forward pass.

    Attributes:
        token_ids: at least one.
        cache: the keys and values of the tokens before them.
        all_positions: whether logits are wanted after every token or after the last only.
    """

    token_ids: Sequence[int]
    cache: KeyValues
    all_positions: bool

    @property
    def start(self) -> int:
        """The position of the first token."""
        return self.cache.length

    @property
    def end(self) -> int:
        """The position behind the last token."""
        return self.cache.length + len(self.token_ids)


class Attention(Protocol):
    """What the layers of a forward pass ask, one after the other."""

    def mix(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Take the new keys and values, and return what the queries find, ``[rows, heads * head_width]``.

        Args:
            layer: index of the block.
            queries: ``[rows, heads, head_width]``.
            keys: ``[rows, key_value_heads, head_width]``.
            values: as ``keys``.
        """

    def end(self) -> None:
        """See to it that all new keys and values are in the caches."""


def attention(parts: Sequence[Part], shape: LlamaShape) -> Attention:
    """Return the attention of parts whose caches have room for their tokens."""
    if len(parts) == 1 and len(parts[0].cache.links) == 1:
        return _Alone(parts[0], shape)
    return _Together(parts, shape)


@final
class _Alone:
    """Attention of one sequence, all of it in one segment."""

    def __init__(self, part: Part, shape: LlamaShape) -> None:
        self._shape = shape
        entries = part.cache.links[0].segment.entries
        # Views of all layers are made at once: a slice costs as much as a small attention.
        self._keys, self._values = (entries[:, at, None, :, : part.end].unbind(0) for at in range(2))
        self._new_keys, self._new_values = (entries[:, at, :, part.start : part.end].unbind(0) for at in range(2))
        # Which position each token may look at; one token sees all.
        self._visible = None
        if len(part.token_ids) > 1:
            ones = torch.ones((len(part.token_ids), part.end), dtype=torch.bool, device=entries.device)
            self._visible = ones.tril(part.start)

    def mix(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        self._new_keys[layer].copy_(keys.transpose(0, 1))
        self._new_values[layer].copy_(values.transpose(0, 1))
        if self._visible is None:
            # The heads that share keys stand for as many positions, all of which see everything.
            shape = self._shape
            grouped = queries.view(1, shape.key_value_heads, -1, shape.head_width)
            return F.scaled_dot_product_attention(grouped, self._keys[layer], self._values[layer]).view(1, -1)
        mixed = F.scaled_dot_product_attention(
            queries.transpose(0, 1)[None],
            self._keys[layer],
            self._values[layer],
            attn_mask=self._visible,
            enable_gqa=True,
        )
        return mixed[0].transpose(0, 1).flatten(1)

    def end(self) -> None:
        """All is there already."""


class _Span(NamedTuple):
    """A stretch of a segment."""

    segment: Segment
    start: int
    stop: int

    def views(self) -> tuple[torch.Tensor, ...]:
        """The entries of each layer, ``[2, key_value_heads, stop - start, head_width]``."""
        return self.segment.entries[:, :, :, self.start : self.stop].unbind(0)


@final
class _Together:
    """Attention of several sequences, or of one that lies in several segments.

    Each query looks at a few places, at most one of each level: at segments that it shares with others, and at what
    its sequence has of its own.
    """

    def __init__(self, parts: Sequence[Part], shape: LlamaShape) -> None:
        sizes = [len(part.token_ids) for part in parts]
        rows = [range(end - size, end) for end, size in zip(accumulate(sizes), sizes, strict=True)]
        shared = _shared(parts)
        self._places: list[_Place] = []
        self._levels = [0] * len(parts)
        for segment, (length, users) in shared.items():
            limits = [_held(parts[user], segment) for user in users for _ in rows[user]]
            bias = _limited(limits, length, shape, segment.entries)
            self._add(_Place(_Span(segment, 0, length), [row for user in users for row in rows[user]], bias, shape), users)
        columns: list[_Column] = []
        for index, part in enumerate(parts):
            *before, (segment, length) = part.cache.links
            own = [
                _Span(link.segment, min(shared.get(link.segment, (0,))[0], link.length), link.length)
                for link in part.cache.links
            ]
