"""Attention of the sequences of one forward pass over their caches.

Each sequence attends to its own entries: in native code if it has few rows on a CPU; on other devices together with
others in a padded tensor, if rows and entries are few; else as usual.  Several sequences attend to a long shared
segment with all their queries in one product.  The partial results are combined by their softmax sums, which is exact
up to rounding.

Source: Juravsky et al. 2024, "Hydragen: High-Throughput LLM Inference with Shared Prefixes" (arXiv 2402.05099).
"""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, final

import torch
import torch.nn.functional as F  # noqa: N812  # the name that every torch text uses

from structgen.models.llama.attended import Own, OwnRows, Padded, Span, Stretch, own_entries, sums_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.models.llama.attended import AttendedEntries
    from structgen.models.llama.cache import Part, Segment
    from structgen.models.llama.network import LlamaShape

__all__ = ["Attention", "attention"]

_WORTHWHILE: Final = 256
"""A shared segment gets one product for all its sequences if its length times their number is at least this: the
product costs as much as copying this many entries."""
_WORTHWHILE_NATIVELY: Final = 4096
"""The same where nothing is copied."""
_NATIVE_ROWS: Final = 32
"""This many rows at most of a sequence attend in native code on a CPU."""
_FEW: Final = 8
_SHORT: Final = 192
"""Sequences with at most this many rows and own entries are copied into one padded tensor and attended to together."""


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


def attention(parts: Sequence[Part], shape: LlamaShape, dtype: torch.dtype, sums: torch.dtype) -> Attention:
    """Return the attention of parts whose caches have capacity for their tokens.

    Args:
        parts: the parts.
        shape: the shape of the network.
        dtype: the dtype of queries and cache entries.
        sums: the dtype of the sums over entries, at least as wide; native code always sums in float64.
    """
    is_native = dtype == torch.float32 and shape.head_width % 8 == 0 and parts[0].cache.links[-1].segment.entries.is_cpu
    if len(parts) == 1 and len(parts[0].cache.links) == 1 and not (is_native and parts[0].rows <= _NATIVE_ROWS):
        return _SingleAttention(parts[0], shape, sums)
    return _PackedAttention(parts, shape, sums, is_native=is_native)


@final
class _SingleAttention:
    """Attention of one sequence in one segment."""

    def __init__(self, part: Part, shape: LlamaShape, sums: torch.dtype) -> None:
        self._shape = shape
        self._sums = sums
        entries = part.cache.links[0].segment.entries
        # The views of all layers are made together: one slice costs as much as a small attention.
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

    def mix(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        self._new_keys[layer].copy_(keys.transpose(0, 1))
        self._new_values[layer].copy_(values.transpose(0, 1))
        shape, given = self._shape, queries.dtype
        all_keys, all_values = self._keys[layer].to(self._sums), self._values[layer].to(self._sums)
        queries = queries.to(self._sums)
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


class _Shared(NamedTuple):
    """A segment that several parts hold.

    Attributes:
        length: number of entries to attend to together.
        held: for each part the number of its entries in the segment.
    """

    length: int
    held: dict[int, int]


def _shared(parts: Sequence[Part], worthwhile: int) -> dict[Segment, _Shared]:
    """Return the segments to attend to together, up to the entries of only one part."""
    held: defaultdict[Segment, dict[int, int]] = defaultdict(dict)
    for index, part in enumerate(parts):
        for segment, length in part.cache.links:
            held[segment][index] = length
    lengths = {segment: sorted(each.values())[-2] for segment, each in held.items() if len(each) > 1}
    return {
        segment: _Shared(length, held[segment])
        for segment, length in lengths.items()
        if length * len(held[segment]) >= worthwhile
    }


@final
class _PackedAttention:
    """Attention of several sequences, or of one in several segments.

    A query attends to groups of entries: the segments that its sequence shares with others of the pass, and the entries
    of its own.  The results of the groups are combined one by one.
    """

    def __init__(self, parts: Sequence[Part], shape: LlamaShape, sums: torch.dtype, *, is_native: bool) -> None:
        ends = list(accumulate(part.rows for part in parts))
        rows = [range(end - part.rows, end) for end, part in zip(ends, parts, strict=True)]
        self._attended: list[AttendedEntries] = []
        shared = _shared(parts, _WORTHWHILE_NATIVELY if is_native else _WORTHWHILE)
        for segment, (length, held) in shared.items():
            seen = {row: limit for index, limit in held.items() for row in rows[index]}
            self._attended.append(Stretch(Span(segment, 0, length), seen, shape, sums))
        few: list[Own] = []
        short: defaultdict[int, list[Own]] = defaultdict(list)  # by the width to which their rows are padded
        for index, part in enumerate(parts):
            spans = [
                Span(segment, min(shared[segment].length, length) if segment in shared else 0, length)
                for segment, length in part.cache.links
            ]
            own = Own(spans, rows[index], part.tree)
            if is_native and part.rows <= _NATIVE_ROWS:
                few.append(own)
            elif part.rows <= _FEW and sum(span.length for span in spans) <= _SHORT:
                short[1 << (part.rows - 1).bit_length()].append(own)
            else:
                self._attended += own_entries(own, shape, sums)
        for most, group in short.items():
            if most > 1 and len(group) == 1:
                self._attended += own_entries(group[0], shape, sums)
            else:
                self._attended.append(Padded(group, most, shape))
        if few:
            self._attended.append(OwnRows(few, ends[-1], shape))
        entries = parts[0].cache.links[-1].segment.entries
        self._sums = torch.float64 if few else sums_type(sums)
        size = (ends[-1], shape.heads, shape.head_width)
        self._output = torch.empty(size, device=entries.device, dtype=self._sums)
        self._log_sums = torch.empty(size[:2], device=entries.device, dtype=self._sums)

    def mix(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        given = queries.dtype
        if len(self._attended) == 1:
            return self._attended[0].attend(layer, queries, keys, values)[0].flatten(1).to(given)
        self._output.zero_()
        self._log_sums.fill_(-torch.inf)
        for entries in self._attended:
            output, log_sums = (each.to(self._sums) for each in entries.attend(layer, queries, keys, values))
            before = self._log_sums[entries.rows]
            # The weight of this group is its share of both softmax sums: e^new / (e^new + e^before).
            share = (log_sums - before).sigmoid()[..., None]
            self._output[entries.rows] = torch.lerp(self._output[entries.rows], output, share)
            self._log_sums[entries.rows] = torch.logaddexp(before, log_sums)
        return self._output.flatten(1).to(given)

    def end(self) -> None:
        for entries in self._attended:
            entries.end()
