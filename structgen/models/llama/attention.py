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
    from collections.abc import Iterator, Sequence

    from structgen.models.llama.cache import KeyValues, Segment
    from structgen.models.llama.network import LlamaShape
    from structgen.models.protocol import Mixture
    from structgen.models.protocol.tree import TokenTree

__all__ = ["Attention", "Part", "attend", "attention"]

_WORTHWHILE: Final = 256
"""A stretch is attended to together where its length times its sequences is at least this: a product for all of them
costs as much as copying so many entries for each of them."""
_SHORT: Final = 128
"""Up to so many entries of a sequence of its own are copied beside those of the others, and attended to with them."""


class Part(NamedTuple):
    """What one sequence brings to a forward pass.

    Attributes:
        token_ids: at least one.
        cache: the keys and values of the tokens before them.
        all_positions: whether logits are wanted after every token or after the last only.
        mixtures: what is read in the place of the tokens, as many; None where these are read.
        tree: what is looked at after the tokens, with logits after each of its own; None for nothing.
    """

    token_ids: Sequence[int]
    cache: KeyValues
    all_positions: bool
    mixtures: Sequence[Mixture] | None = None
    tree: TokenTree | None = None

    @property
    def start(self) -> int:
        """The position of the first token, and where its entry goes."""
        return self.cache.length

    @property
    def rows(self) -> int:
        """How many tokens are run, those of the tree included."""
        return len(self.token_ids) + (0 if self.tree is None else len(self.tree.token_ids))

    @property
    def end(self) -> int:
        """Where the entries of what is run end; without a tree the position after the last token as well."""
        return self.cache.length + self.rows

    @property
    def ids(self) -> Sequence[int]:
        """The tokens that are run, those of the tree last."""
        return self.token_ids if self.tree is None else [*self.token_ids, *self.tree.token_ids]

    @property
    def positions(self) -> Sequence[int]:
        """The position of each token that is run."""
        start, end = self.start, self.start + len(self.token_ids)
        positions = range(start, end)
        return positions if self.tree is None else [*positions, *(end + depth for depth in self.tree.depths())]

    @property
    def wanted(self) -> int:
        """After how many of the last tokens that are run logits are wanted."""
        return self.rows if self.all_positions else 1 + self.rows - len(self.token_ids)


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
        return _SingleAttention(parts[0], shape)
    return _PackedAttention(parts, shape)


@final
class _SingleAttention:
    """Attention of one sequence, all of it in one segment."""

    def __init__(self, part: Part, shape: LlamaShape) -> None:
        self._shape = shape
        entries = part.cache.links[0].segment.entries
        # Views of all layers are made at once: a slice costs as much as a small attention.
        self._keys, self._values = (entries[:, at, None, :, : part.end].unbind(0) for at in range(2))
        self._new_keys, self._new_values = (entries[:, at, :, part.start : part.end].unbind(0) for at in range(2))
        # Which position each token may look at; one token sees all.
        self._visible = None
        if part.rows > 1:
            ones = torch.ones((part.rows, part.end), dtype=torch.bool, device=entries.device)
            self._visible = ones.tril(part.start)
            if part.tree is not None:
                ancestors = _ancestors(part.tree, entries.device)
                self._visible[-len(ancestors) :, -len(ancestors) :] = ancestors

    def mix(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        self._new_keys[layer].copy_(keys.transpose(0, 1))
        self._new_values[layer].copy_(values.transpose(0, 1))
        if self._visible is None:
            # The heads that share keys stand for as many positions; all see everything.
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
    """A stretch of a segment, which may be empty."""

    segment: Segment
    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start

    def layers(self) -> tuple[torch.Tensor, ...]:
        """The entries of each layer, ``[2, key_value_heads, length, head_width]``."""
        return self.segment.entries[:, :, :, self.start : self.stop].unbind(0)


class _Shared(NamedTuple):
    """A segment that several parts hold.

    Attributes:
        length: how much of it is attended to together.
        held: for each of the parts, how much of it is its own past.
    """

    length: int
    held: dict[int, int]


def _shared(parts: Sequence[Part]) -> dict[Segment, _Shared]:
    """The segments that are worth attending to together: up to where only one part goes on."""
    held: defaultdict[Segment, dict[int, int]] = defaultdict(dict)
    for index, part in enumerate(parts):
        for segment, length in part.cache.links:
            held[segment][index] = length
    lengths = {segment: sorted(each.values())[-2] for segment, each in held.items() if len(each) > 1}
    return {
        segment: _Shared(length, held[segment])
        for segment, length in lengths.items()
        if length * len(held[segment]) >= _WORTHWHILE
    }


@final
class _PackedAttention:
    """Attention of several sequences, or of one that lies in several segments.

    A query looks at some places: at segments that its sequence shares with others of the pass, and at what that has of
    its own.  What it finds there is put together place by place.
    """

    def __init__(self, parts: Sequence[Part], shape: LlamaShape) -> None:
        ends = list(accumulate(part.rows for part in parts))
        rows = [range(end - part.rows, end) for end, part in zip(ends, parts, strict=True)]
        self._places: list[_AttendedEntries] = []
        shared = _shared(parts)
        for segment, (length, held) in shared.items():
            seen = {row: limit for index, limit in held.items() for row in rows[index]}
            self._places.append(_Stretch(_Span(segment, 0, length), seen, shape))
        short: dict[int, list[_Span]] = {}
        for index, part in enumerate(parts):
            own = [
                _Span(segment, min(shared[segment].length, length) if segment in shared else 0, length)
                for segment, length in part.cache.links
            ]
            if part.rows == 1 and sum(span.length for span in own) <= _SHORT:
                short[rows[index][0]] = own
            else:
                self._places += _own_entries(own, rows[index], part.tree, shape)
        if short:
            self._places.append(_Padded(short, shape))
        device = parts[0].cache.links[-1].segment.entries.device
        self._found = torch.empty((ends[-1], shape.heads, shape.head_width), device=device)
        self._log_sums = torch.empty((ends[-1], shape.heads), device=device)

    def mix(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        if len(self._places) == 1:
            return self._places[0].attend(layer, queries, keys, values)[0].flatten(1).to(queries.dtype)
        self._found.zero_()
        self._log_sums.fill_(-torch.inf)
        for place in self._places:
            found, log_sums = place.attend(layer, queries, keys, values)
            before = self._log_sums[place.rows]
            # What is found here weighs as its share of both sums: e^new / (e^new + e^before).
            share = (log_sums - before).sigmoid()[..., None]
            self._found[place.rows] = torch.lerp(self._found[place.rows], found, share)
            self._log_sums[place.rows] = torch.logaddexp(before, log_sums)
        return self._found.flatten(1).to(queries.dtype)

    def end(self) -> None:
        for place in self._places:
            place.end()


def _own_entries(own: Sequence[_Span], rows: range, tree: TokenTree | None, shape: LlamaShape) -> Iterator[_Stretch]:
    """What a sequence has of its own, one stretch after the other, the last together with the new tokens."""
    *before, (segment, start, stop) = own
    for span in before:
        if span.length:
            yield _Stretch(span, dict.fromkeys(rows, span.length), shape)
    new = _Span(segment, stop, stop + len(rows))
    seen = {row: stop - start + count for count, row in enumerate(rows, start=1)}
    yield _Stretch(_Span(segment, start, new.stop), seen, shape, new, tree)


class _AttendedEntries(Protocol):
    """Entries that some of the rows look at.

    Attributes:
        rows: which.
    """

    rows: slice | torch.Tensor

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take what ``mix`` takes, and return what ``attend`` returns, in float32, by rows."""

    def end(self) -> None:
        """See ``Attention.end``."""


@final
class _Stretch:
    """A stretch of one segment.

    Args:
        span: where it is.
        seen: the rows that look at it, and how many of its entries each sees.
        shape: of the network.
        new: the end of it, where the rows' own keys and values go.
        tree: what the last rows are; each sees its ancestors alone of what is theirs.
    """

    def __init__(
        self,
        span: _Span,
        seen: dict[int, int],
        shape: LlamaShape,
        new: _Span | None = None,
        tree: TokenTree | None = None,
    ) -> None:
        device, dtype = span.segment.entries.device, span.segment.entries.dtype
        self.rows = _index(list(seen), device)
        self._shape = shape
        self._entries = span.layers()
        self._new = None if new is None else new.layers()
        # The heads that share keys stand for as many rows.
        groups = shape.heads // shape.key_value_heads
        limits = [limit for limit in seen.values() for _ in range(groups)]
        self._bias = None if min(limits) == span.length else _bias(limits, span.length, device).to(dtype)
        if tree is not None and self._bias is not None:
            hidden = ~_ancestors(tree, device).repeat_interleave(groups, 0)
            self._bias[-len(hidden) :, -hidden.shape[1] :].masked_fill_(hidden, -torch.inf)

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self._new is not None:
            self._new[layer][0] = keys[self.rows].transpose(0, 1)
            self._new[layer][1] = values[self.rows].transpose(0, 1)
        shape = self._shape
        own = queries[self.rows]
        grouped = own.view(len(own), shape.key_value_heads, -1, shape.head_width).transpose(0, 1).flatten(1, 2)
        found, log_sums = attend(grouped, self._entries[layer][0], self._entries[layer][1], self._bias)
        back = shape.key_value_heads, len(own), -1
        return (
            found.float().reshape(*back, shape.head_width).transpose(0, 1).reshape(own.shape),
            log_sums.reshape(back).transpose(0, 1).flatten(1),
        )

    def end(self) -> None:
        """All is there already."""


@final
class _Padded:
    """What some sequences of one new token each have of their own, copied side by side in each layer.

    Args:
        own: what each has, by its row.
        shape: of the network.
    """

    def __init__(self, own: dict[int, list[_Span]], shape: LlamaShape) -> None:
        lengths = [sum(span.length for span in spans) for spans in own.values()]
        width = 1 + max(lengths)
        lasts = [spans[-1] for spans in own.values()]
        like = lasts[0].segment.entries
        self.rows = _index(list(own), like.device)
        self._shape = shape
        # The new entry of each comes first, the padding last.  In float32 whatever the dtype, as `attend` sums.
        size = (2, len(own), shape.key_value_heads, width, shape.head_width)
        self._entries = like.new_zeros(size, dtype=torch.float32)
        self._keys, self._values = self._entries.flatten(1, 2)
        bias = _bias([1 + length for length in lengths], width, like.device)
        groups = shape.heads // shape.key_value_heads
        self._bias = bias.repeat_interleave(shape.key_value_heads, 0)[:, None].expand(-1, groups, -1)
        self._copies: list[tuple[torch.Tensor, tuple[torch.Tensor, ...]]] = []
        for index, spans in enumerate(own.values()):
            at = 1
            for span in spans:
                if span.length:
                    self._copies.append((self._entries[:, index, :, at : at + span.length], span.layers()))
                    at += span.length
        self._news = [segment.entries[..., stop, :] for segment, _, stop in lasts]
        self._new: list[torch.Tensor] = []

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        new = torch.stack((keys[self.rows], values[self.rows]))
        self._new.append(new)
        self._entries[:, :, :, 0] = new
        for copy, entries in self._copies:
            copy.copy_(entries[layer])
        shape = self._shape
        own = queries[self.rows]
        grouped = own.float().view(-1, shape.heads // shape.key_value_heads, shape.head_width)
        found, log_sums = _attend_in_float32(grouped, self._keys, self._values, self._bias)
        return found.view(own.shape), log_sums.view(own.shape[:2])

    def end(self) -> None:
        for entries, new in zip(self._news, torch.stack(self._new).unbind(2), strict=True):
            entries.copy_(new)


def attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of some heads.

    Args:
        queries: ``[heads, rows, head_width]``.
        keys: ``[heads, length, head_width]``.
        values: as ``keys``.
        bias: what is added to each score, ``[rows, length]``.

    Returns:
        What the queries find, ``[heads, rows, head_width]``, and the logarithms of the sums of exp(score), ``[heads,
        rows]``, in float32.
    """
    # torch's own attention does not tell the sums; its kernel for CPUs does, and has no public name.
    if queries.device.type == "cpu" and hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu"):
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        found, log_sums = kernel(queries[None], keys[None], values[None], attn_mask=bias)
        return found[0], log_sums[0]
    found, log_sums = _attend_in_float32(queries.float(), keys.float(), values.float(), bias)
    return found.to(queries.dtype), log_sums


def _attend_in_float32(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As ``attend``, with a bias for each head, ``[heads, rows, length]``, or for all."""
    scale = queries.shape[-1] ** -0.5
    if bias is None:
        scores = torch.bmm(queries * scale, keys.transpose(1, 2))
    else:
        scores = torch.baddbmm(bias, queries, keys.transpose(1, 2), alpha=scale)
    weights = scores.softmax(-1)
    # The largest weight is exp(largest score - logarithm of the sum).
    return torch.bmm(weights, values), scores.amax(-1) - weights.amax(-1).log()


def _bias(limits: Sequence[int], width: int, device: torch.device) -> torch.Tensor:
    """0 at the first of ``width`` columns, as many as the limit of the row, and -inf after them."""
    visible = torch.arange(width, device=device) < torch.tensor(limits, device=device)[:, None]
    return torch.zeros(visible.shape, device=device).masked_fill(~visible, -torch.inf)


def _ancestors(tree: TokenTree, device: torch.device) -> torch.Tensor:
    """See ``TokenTree.ancestors``."""
    return torch.from_numpy(tree.ancestors()).to(device)


def _index(rows: Sequence[int], device: torch.device) -> slice | torch.Tensor:
    """What picks rows from a tensor, without a copy where they lie side by side."""
    first = rows[0]
    if all(row == first + count for count, row in enumerate(rows)):
        return slice(first, first + len(rows))
    return torch.tensor(rows, device=device)
