"""Groups of cache entries that rows of a forward pass attend to; ``attention.py`` combines their results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, final

import numpy as np
import torch
from structgen_kernels import _native

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from structgen.models.llama.cache import Segment
    from structgen.models.llama.network import LlamaShape
    from structgen.models.protocol.tree import TokenTree

__all__ = [
    "AttendedEntries",
    "Own",
    "OwnRows",
    "Padded",
    "Span",
    "Stretch",
    "attend",
    "attend_plainly",
    "bias_of",
    "own_entries",
    "sums_type",
]


class Span(NamedTuple):
    """A range of a segment, possibly empty."""

    segment: Segment
    start: int
    stop: int

    @property
    def length(self) -> int:
        """Number of entries."""
        return self.stop - self.start

    def layers(self) -> tuple[torch.Tensor, ...]:
        """The entries of each layer, ``[2, key_value_heads, length, head_width]``."""
        return self.segment.entries[:, :, :, self.start : self.stop].unbind(0)


class Own(NamedTuple):
    """The entries of one sequence alone, the rows of its new tokens, and the tree of the last of these."""

    spans: Sequence[Span]
    rows: range
    tree: TokenTree | None


def own_entries(own: Own, shape: LlamaShape, sums: torch.dtype) -> Iterator[Stretch]:
    """Yield a sequence's own entries, one group per segment, the last with the new tokens."""
    *before, (segment, start, stop) = own.spans
    rows = own.rows
    for span in before:
        if span.length:
            yield Stretch(span, dict.fromkeys(rows, span.length), shape, sums)
    new = Span(segment, stop, stop + len(rows))
    seen = {row: stop - start + count for count, row in enumerate(rows, start=1)}
    yield Stretch(Span(segment, start, new.stop), seen, shape, sums, new, own.tree)


class AttendedEntries(Protocol):
    """Cache entries that some query rows attend to.

    Attributes:
        rows: the query rows.
    """

    rows: slice | torch.Tensor

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the results of the function ``attend`` for the arguments of ``mix``, by rows, in a dtype of sums."""

    def end(self) -> None:
        """See ``Attention.end``."""


@final
class Stretch:
    """A range of one segment.

    Args:
        span: the range.
        seen: the query rows that attend to the range, and the number of entries that each attends to.
        shape: the shape of the network.
        sums: the dtype of sums over entries.
        new: the end of the range, for the rows' own keys and values.
        tree: the tree of the last rows; of the tree's entries, each row attends to its ancestors only.
    """

    def __init__(
        self,
        span: Span,
        seen: dict[int, int],
        shape: LlamaShape,
        sums: torch.dtype,
        new: Span | None = None,
        tree: TokenTree | None = None,
    ) -> None:
        device = span.segment.entries.device
        self.rows = index_of(list(seen), device)
        self._shape = shape
        self._sums = sums
        self._entries = span.layers()
        self._new = None if new is None else new.layers()
        # Query heads that share keys are treated as rows.
        groups = shape.heads // shape.key_value_heads
        limits = [limit for limit in seen.values() for _ in range(groups)]
        self._bias = None if min(limits) == span.length else bias_of(limits, span.length, device).to(sums)
        if tree is not None and self._bias is not None:
            hidden = ~torch.from_numpy(tree.ancestors()).to(device).repeat_interleave(groups, 0)
            self._bias[-len(hidden) :, -hidden.shape[1] :].masked_fill_(hidden, -torch.inf)

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``AttendedEntries.attend``."""
        if self._new is not None:
            self._new[layer][0] = keys[self.rows].transpose(0, 1)
            self._new[layer][1] = values[self.rows].transpose(0, 1)
        shape = self._shape
        own, (all_keys, all_values) = queries[self.rows].to(self._sums), self._entries[layer].to(self._sums)
        grouped = own.view(len(own), shape.key_value_heads, -1, shape.head_width).transpose(0, 1).flatten(1, 2)
        output, log_sums = attend(grouped, all_keys, all_values, self._bias)
        back = shape.key_value_heads, len(own), -1
        return (
            output.to(log_sums.dtype).reshape(*back, shape.head_width).transpose(0, 1).reshape(own.shape),
            log_sums.reshape(back).transpose(0, 1).flatten(1),
        )

    def end(self) -> None:
        """All is there already."""


@final
class Padded:
    """The own entries of sequences of few new tokens, copied into one padded tensor in each layer.

    Args:
        group: the sequences.
        most: as many rows as each of them has at most; the missing ones attend to the first.
        shape: the shape of the network.
    """

    def __init__(self, group: Sequence[Own], most: int, shape: LlamaShape) -> None:
        lengths = [sum(span.length for span in own.spans) for own in group]
        width = most + max(lengths)
        like = group[0].spans[-1].segment.entries
        rows = [row for own in group for row in own.rows]
        self.rows = index_of(rows, like.device)
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
        self._entries = like.new_zeros(size, dtype=sums_type(like.dtype))
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
        """See ``AttendedEntries.attend``."""
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
        output, log_sums = attend_plainly(grouped, self._keys, self._values, self._bias)
        output = output.view(count, heads, most, groups, -1).transpose(1, 2).reshape(own.shape)
        log_sums = log_sums.view(count, heads, most, groups).transpose(1, 2).reshape(own.shape[:2])
        return (output, log_sums) if self._kept is None else (output[self._kept], log_sums[self._kept])

    def end(self) -> None:
        """See ``Attention.end``."""
        new = torch.stack(self._new)
        for entries, rows in self._news:
            entries.copy_(new[:, :, rows].transpose(2, 3))


@final
class OwnRows:
    """The own entries of sequences of few new tokens, attended to in native code, which copies nothing.

    A row's sums are in float64 and in the order of its sequence, so it gets the same result in any batch, to the last
    bit.

    Args:
        group: the sequences.
        rows: the number of rows of the pass.
        shape: the shape of the network.
    """

    def __init__(self, group: Sequence[Own], rows: int, shape: LlamaShape) -> None:
        device = group[0].spans[-1].segment.entries.device
        self.rows = index_of([row for own in group for row in own.rows], device)
        self._native = _native.OwnAttention(
            shape.key_value_heads, shape.heads // shape.key_value_heads, [_native_part(own) for own in group]
        )
        self._output = torch.empty((rows, shape.heads, shape.head_width), dtype=torch.float64)
        self._log_sums = torch.empty((rows, shape.heads), dtype=torch.float64)
        self._results = self._output.numpy(), self._log_sums.numpy()

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``AttendedEntries.attend``."""
        self._native.attend(layer, queries.numpy(), keys.numpy(), values.numpy(), *self._results)
        return self._output[self.rows], self._log_sums[self.rows]

    def end(self) -> None:
        """All is there already."""


def _native_part(own: Own) -> tuple[int, int, list[tuple[NDArray[Any], int, int]], NDArray[np.bool_] | None]:
    """First row, number of rows, spans, and which new tokens a row sees, if these are not all up to itself."""
    visible = None
    if own.tree is not None:
        count, ancestors = len(own.rows), own.tree.ancestors()
        visible = np.tri(count, dtype=np.bool_)
        visible[-len(ancestors) :, -len(ancestors) :] = ancestors
    spans = [(span.segment.entries.numpy(), span.start, span.length) for span in own.spans]
    return own.rows[0], len(own.rows), spans, visible


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
    sums = sums_type(keys.dtype)
    output, log_sums = attend_plainly(queries.to(sums), keys.to(sums), values.to(sums), bias)
    return output.to(queries.dtype), log_sums


def sums_type(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of sums over entries of a dtype: float32, or that of wider entries."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def attend_plainly(
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


def bias_of(limits: Sequence[int], width: int, device: torch.device) -> torch.Tensor:
    """Return ``[rows, width]``: 0 in as many first columns as the row's limit, -inf after them."""
    visible = torch.arange(width, device=device) < torch.tensor(limits, device=device)[:, None]
    return torch.zeros(visible.shape, device=device).masked_fill(~visible, -torch.inf)


def index_of(rows: Sequence[int], device: torch.device) -> slice | torch.Tensor:
    """Return an index for rows of a tensor; a slice, which copies nothing, if they are adjacent."""
    first = rows[0]
    if all(row == first + count for count, row in enumerate(rows)):
        return slice(first, first + len(rows))
    return torch.tensor(rows, device=device)
