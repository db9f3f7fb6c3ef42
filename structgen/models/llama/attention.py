"""Attention of the sequences of one forward pass over their caches.

A single sequence attends as usual.  Several sequences attend to each shared segment with all their queries in one
product.  To their own entries they attend one by one, or together in a padded tensor if both rows and entries are few.
The partial results are combined by their softmax sums, which is exact up to rounding.

Source: Juravsky et al. 2024, "Hydragen: High-Throughput LLM Inference with Shared Prefixes" (arXiv 2402.05099).
"""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, final

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # the name that every torch text uses

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from structgen.models.llama.cache import Segment
    from structgen.models.llama.network import LlamaShape
    from structgen.models.llama.part import Part
    from structgen.models.protocol.tree import TokenTree

__all__ = ["Attention", "attend", "attention"]

_WORTHWHILE: Final = 256
"""A shared segment gets one product for all its sequences if its length times their number is at least this: the
product costs as much as copying this many entries."""
_FEW: Final = 8
"""So many rows at most attend by two plain products on a CPU."""
_SHORT: Final = 192
"""Sequences with at most this many own entries are copied into one padded tensor and attended to together."""


class Attention(Protocol):
    """The attention of one forward pass, called by each layer in turn."""

    def mix(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Store the new keys and values, and return the attention output, ``[rows, heads * head_width]``.

        Args:
            layer: index of the block.
            queries: ``[rows, heads, head_width]``.
            keys: ``[rows, key_value_heads, head_width]``.
            values: as ``keys``.
        """

    def end(self) -> None:
        """Finish the pass: all new keys and values are in the caches afterwards."""


def attention(parts: Sequence[Part], shape: LlamaShape) -> Attention:
    """Return the attention of parts whose caches have capacity for their tokens."""
    if len(parts) == 1 and len(parts[0].cache.links) == 1:
        return _SingleAttention(parts[0], shape)
    return _PackedAttention(parts, shape)


@final
class _SingleAttention:
    """Attention of one sequence in one segment."""

    def __init__(self, part: Part, shape: LlamaShape) -> None:
        self._shape = shape
        entries = part.cache.links[0].segment.entries
        # The views of all layers are made at once: one slice costs as much as a small attention.
        self._keys, self._values = (entries[:, at, None, :, : part.end].unbind(0) for at in range(2))
        self._new_keys, self._new_values = (entries[:, at, :, part.start : part.end].unbind(0) for at in range(2))
        # The positions that each token attends to; a single token attends to all.
        self._visible = None
        if part.rows > 1:
            ones = torch.ones((part.rows, part.end), dtype=torch.bool, device=entries.device)
            self._visible = ones.tril(part.start)
            if part.tree is not None:
                ancestors = torch.from_numpy(part.tree.ancestors()).to(entries.device)
                self._visible[-len(ancestors) :, -len(ancestors) :] = ancestors
        self._bias = None
        if part.rows <= _FEW and entries.device.type == "cpu" and entries.dtype in (torch.float32, torch.float64):
            bias = torch.zeros((part.rows, part.end), dtype=entries.dtype)
            if self._visible is not None:
                bias.masked_fill_(~self._visible, -torch.inf)
            self._bias = bias.repeat_interleave(shape.heads // shape.key_value_heads, 0)

    def mix(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        self._new_keys[layer].copy_(keys.transpose(0, 1))
        self._new_values[layer].copy_(values.transpose(0, 1))
        shape, given = self._shape, queries.dtype
        all_keys, all_values = self._keys[layer], self._values[layer]
        queries = queries.to(all_keys.dtype)
        if self._bias is not None:
            # Two products are faster for few rows than torch's kernel.
            grouped = (
                queries.view(len(queries), shape.key_value_heads, -1, shape.head_width).transpose(0, 1).flatten(1, 2)
            )
            weights = torch.baddbmm(self._bias, grouped, all_keys[0].mT, alpha=shape.head_width**-0.5).softmax(-1)
            mixed = torch.bmm(weights, all_values[0])
            return mixed.view(shape.key_value_heads, len(queries), -1).transpose(0, 1).flatten(1).to(given)
        if self._visible is None:
            # Query heads that share keys are treated as positions; all attend to everything.
            grouped = queries.reshape(1, shape.key_value_heads, -1, shape.head_width)
            return F.scaled_dot_product_attention(grouped, all_keys, all_values).view(1, -1).to(given)
        mixed = F.scaled_dot_product_attention(
            queries.transpose(0, 1)[None], all_keys, all_values, attn_mask=self._visible, enable_gqa=True
        )
        return mixed[0].transpose(0, 1).flatten(1).to(given)

    def end(self) -> None:
        """All is there already."""


class _Span(NamedTuple):
    """A range of a segment, possibly empty."""

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
        length: number of entries to attend to together.
        held: for each part the number of its entries in the segment.
    """

    length: int
    held: dict[int, int]


def _shared(parts: Sequence[Part]) -> dict[Segment, _Shared]:
    """Return the segments to attend to together, up to the entries of only one part."""
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
    """Attention of several sequences, or of one in several segments.

    A query attends to groups of entries: the segments that its sequence shares with others of the pass, and the entries
    of its own.  The results of the groups are combined one by one.
    """

    def __init__(self, parts: Sequence[Part], shape: LlamaShape) -> None:
        ends = list(accumulate(part.rows for part in parts))
        rows = [range(end - part.rows, end) for end, part in zip(ends, parts, strict=True)]
        self._attended: list[_AttendedEntries] = []
        shared = _shared(parts)
        for segment, (length, held) in shared.items():
            seen = {row: limit for index, limit in held.items() for row in rows[index]}
            self._attended.append(_Stretch(_Span(segment, 0, length), seen, shape))
        short: defaultdict[int, list[_Own]] = defaultdict(list)  # by the width to which their rows are padded
        for index, part in enumerate(parts):
            spans = [
                _Span(segment, min(shared[segment].length, length) if segment in shared else 0, length)
                for segment, length in part.cache.links
            ]
            own = _Own(spans, rows[index], part.tree)
            if part.rows <= _FEW and sum(span.length for span in spans) <= _SHORT:
                short[1 << (part.rows - 1).bit_length()].append(own)
            else:
                self._attended += _own_entries(own, shape)
        for most, group in short.items():
            if most > 1 and len(group) == 1:
                self._attended += _own_entries(group[0], shape)
            else:
                self._attended.append(_Padded(group, most, shape))
        entries = parts[0].cache.links[-1].segment.entries
        self._dtype = entries.dtype
        sums = _sums(entries.dtype)
        self._output = torch.empty((ends[-1], shape.heads, shape.head_width), device=entries.device, dtype=sums)
        self._log_sums = torch.empty((ends[-1], shape.heads), device=entries.device, dtype=sums)

    def mix(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        given = queries.dtype
        queries = queries.to(self._dtype)
        if len(self._attended) == 1:
            return self._attended[0].attend(layer, queries, keys, values)[0].flatten(1).to(given)
        self._output.zero_()
        self._log_sums.fill_(-torch.inf)
        for entries in self._attended:
            output, log_sums = entries.attend(layer, queries, keys, values)
            before = self._log_sums[entries.rows]
            # The weight of this group is its share of both softmax sums: e^new / (e^new + e^before).
            share = (log_sums - before).sigmoid()[..., None]
            self._output[entries.rows] = torch.lerp(self._output[entries.rows], output, share)
            self._log_sums[entries.rows] = torch.logaddexp(before, log_sums)
        return self._output.flatten(1).to(given)

    def end(self) -> None:
        for entries in self._attended:
            entries.end()


class _Own(NamedTuple):
    """The entries of one sequence alone, the rows of its new tokens, and the tree of the last of these."""

    spans: Sequence[_Span]
    rows: range
    tree: TokenTree | None


def _own_entries(own: _Own, shape: LlamaShape) -> Iterator[_Stretch]:
    """Yield a sequence's own entries, one group per segment, the last with the new tokens."""
    *before, (segment, start, stop) = own.spans
    rows = own.rows
    for span in before:
        if span.length:
            yield _Stretch(span, dict.fromkeys(rows, span.length), shape)
    new = _Span(segment, stop, stop + len(rows))
    seen = {row: stop - start + count for count, row in enumerate(rows, start=1)}
    yield _Stretch(_Span(segment, start, new.stop), seen, shape, new, own.tree)


class _AttendedEntries(Protocol):
    """Cache entries that some query rows attend to.

    Attributes:
        rows: the query rows.
    """

    rows: slice | torch.Tensor

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the results of the function ``attend`` for the arguments of ``mix``, in the dtype of sums, by rows."""

    def end(self) -> None:
        """See ``Attention.end``."""


@final
class _Stretch:
    """A range of one segment.

    Args:
        span: the range.
        seen: the query rows that attend to the range, and the number of entries that each attends to.
        shape: the shape of the network.
        new: the end of the range, for the rows' own keys and values.
        tree: the tree of the last rows; of the tree's entries, each row attends to its ancestors only.
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
        # Query heads that share keys are treated as rows.
        groups = shape.heads // shape.key_value_heads
        limits = [limit for limit in seen.values() for _ in range(groups)]
        self._bias = None if min(limits) == span.length else _bias(limits, span.length, device).to(dtype)
        if tree is not None and self._bias is not None:
            hidden = ~torch.from_numpy(tree.ancestors()).to(device).repeat_interleave(groups, 0)
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
        output, log_sums = attend(grouped, self._entries[layer][0], self._entries[layer][1], self._bias)
        back = shape.key_value_heads, len(own), -1
        return (
            output.to(log_sums.dtype).reshape(*back, shape.head_width).transpose(0, 1).reshape(own.shape),
            log_sums.reshape(back).transpose(0, 1).flatten(1),
        )

    def end(self) -> None:
        """All is there already."""


@final
class _Padded:
    """The own entries of sequences of few new tokens, copied into one padded tensor in each layer.

    Args:
        group: the sequences.
        most: as many rows as each of them has at most; the missing ones attend to the first.
        shape: the shape of the network.
    """

    def __init__(self, group: Sequence[_Own], most: int, shape: LlamaShape) -> None:
        lengths = [sum(span.length for span in own.spans) for own in group]
        width = most + max(lengths)
        like = group[0].spans[-1].segment.entries
        rows = [row for own in group for row in own.rows]
        self.rows = _index(rows, like.device)
        self._shape = shape
        self._size = len(group), most, shape.key_value_heads, shape.heads // shape.key_value_heads
        # The rows of a sequence are padded by its first one.
        starts = np.cumsum([0, *(len(own.rows) for own in group)])
        kept = [at * most + row for at, own in enumerate(group) for row in range(len(own.rows))]
        self._padded, self._kept = None, None
        if len(rows) < len(group) * most:
            wide = np.repeat(starts[:-1], most)
            wide[kept] = np.arange(len(rows))
            self._padded, self._kept = (torch.tensor(each, device=like.device) for each in (wide, kept))
        # The new entries are first, the padding last.
        size = (2, len(group), shape.key_value_heads, width, shape.head_width)
        self._entries = like.new_zeros(size, dtype=_sums(like.dtype))
        self._keys, self._values = self._entries.flatten(1, 2)
        visible = torch.zeros((len(group), most, width), dtype=torch.bool, device=like.device)
        visible[:, :, :most] = torch.ones((most, most), dtype=torch.bool, device=like.device).tril()
        self._copies: list[tuple[torch.Tensor, tuple[torch.Tensor, ...]]] = []
        self._news: list[tuple[torch.Tensor, slice]] = []
        for index, (own, length) in enumerate(zip(group, lengths, strict=True)):
            visible[index, :, most : most + length] = True
            count, segment, stop = len(own.rows), own.spans[-1].segment, own.spans[-1].stop
            if own.tree is not None:
                ancestors = torch.from_numpy(own.tree.ancestors()).to(like.device)
                start = count - len(ancestors)
                visible[index, start:count, start:count] = ancestors
            at = most
            for span in own.spans:
                if span.length:
                    self._copies.append((self._entries[:, index, :, at : at + span.length], span.layers()))
                    at += span.length
            new = slice(int(starts[index]), int(starts[index + 1]))
            self._news.append((segment.entries[..., stop : stop + count, :], new))
        bias = self._entries.new_zeros(visible.shape).masked_fill_(~visible, -torch.inf)
        heads, groups = self._size[2:]
        self._bias = bias[:, None, :, None].expand(-1, heads, -1, groups, -1).flatten(0, 1).flatten(1, 2)
        self._new: list[torch.Tensor] = []

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        count, most, heads, groups = self._size
        new = torch.stack((keys[self.rows], values[self.rows]))
        self._new.append(new)
        own = queries[self.rows].to(self._keys.dtype)
        if self._padded is not None:
            new, own = new[:, self._padded], own[self._padded]
        self._entries[:, :, :, :most] = new.view(2, count, most, heads, -1).transpose(2, 3)
        for copy, entries in self._copies:
            copy.copy_(entries[layer])
        grouped = own.view(count, most, heads, groups, -1).transpose(1, 2).reshape(count * heads, most * groups, -1)
        output, log_sums = _attend_plainly(grouped, self._keys, self._values, self._bias)
        output = output.view(count, heads, most, groups, -1).transpose(1, 2).reshape(own.shape)
        log_sums = log_sums.view(count, heads, most, groups).transpose(1, 2).reshape(own.shape[:2])
        return (output, log_sums) if self._kept is None else (output[self._kept], log_sums[self._kept])

    def end(self) -> None:
        new = torch.stack(self._new)
        for entries, rows in self._news:
            entries.copy_(new[:, :, rows].transpose(2, 3))


def attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the attention of some heads.

    Args:
        queries: ``[heads, rows, head_width]``.
        keys: ``[heads, length, head_width]``.
        values: as ``keys``.
        bias: added to each score, ``[rows, length]``.

    Returns:
        The attention output, ``[heads, rows, head_width]``, and the log-sum-exp of the scores, ``[heads, rows]``, in
        float32 (float64 for such keys).
    """
    # torch's public attention does not return the sums; its CPU kernel does, but has no public name.
    if queries.device.type == "cpu" and hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu"):
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        output, log_sums = kernel(queries[None], keys[None], values[None], attn_mask=bias)
        return output[0], log_sums[0]
    sums = _sums(keys.dtype)
    output, log_sums = _attend_plainly(queries.to(sums), keys.to(sums), values.to(sums), bias)
    return output.to(queries.dtype), log_sums


def _sums(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of sums over entries of a dtype: float32, or that of wider entries."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _attend_plainly(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As ``attend``, with a bias for each head, ``[heads, rows, length]``, or for all."""
    scale = queries.shape[-1] ** -0.5
    if bias is None:
        scores = torch.bmm(queries * scale, keys.transpose(1, 2))
    else:
        scores = torch.baddbmm(bias, queries, keys.transpose(1, 2), alpha=scale)
    weights = scores.softmax(-1)
    # The largest weight is exp(largest score - log-sum-exp).
    return torch.bmm(weights, values), scores.amax(-1) - weights.amax(-1).log()


def _bias(limits: Sequence[int], width: int, device: torch.device) -> torch.Tensor:
    """Return ``[rows, width]``: 0 in as many first columns as the row's limit, -inf after them."""
    visible = torch.arange(width, device=device) < torch.tensor(limits, device=device)[:, None]
    return torch.zeros(visible.shape, device=device).masked_fill(~visible, -torch.inf)


def _index(rows: Sequence[int], device: torch.device) -> slice | torch.Tensor:
    """Return an index for rows of a tensor; a slice, which copies nothing, if they are adjacent."""
    first = rows[0]
    if all(row == first + count for count, row in enumerate(rows)):
        return slice(first, first + len(rows))
    return torch.tensor(rows, device=device)
