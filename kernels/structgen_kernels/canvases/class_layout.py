"""A partition of a vocabulary, laid out for passes over rows of logits that reduce them by class.

The vocabulary is cut into *blocks*, stretches of contiguous ids, so that logits are read as they lie.  In a block the
tokens of each class form a *segment*, and a segment is dealt out to *groups* of ``GROUP`` places, the last filled up
with nothing: a thread reduces a group by itself, and only the results of groups are scanned across threads.  A block
ends where its groups are used up, so that rare classes shorten it, and at a multiple of ``GROUP``, so that its logits
are loaded as vectors.

What a pass writes is one entry for each segment, in the order of blocks, then of classes; what reads them goes from a
class to its segments, in the order of blocks, which is that of ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, final

import numpy as np
import torch

from structgen_kernels.errors import KernelArgumentError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

__all__ = ["GROUP", "ClassLayout"]

GROUP: Final = 8
"""Places of a group."""

_MIN_BLOCK: Final = 64
_USUAL_BLOCK: Final = 2048
_MAX_BLOCK: Final = 4096


@final
@dataclass(frozen=True, slots=True, eq=False)
class ClassLayout:
    """Where the tokens of each class are; immutable, made once for each partition.

    Attributes:
        size: tokens of the vocabulary.
        classes: how many classes there are; some may have no tokens.
        block: places of a block, and its tokens at most; a power of two.
        class_of: int32 ``[size]``.
        begin: int32 ``[blocks + 1]``, the first token of each block.
        places: int16 ``[blocks, block]``, what token of the block is at each place, counted from its first; -1 for
            none.
        groups: int32 ``[blocks, block / GROUP]``: ``4 * n + 2 * is_last + is_first`` for a group of the ``n``-th
            segment of the block; 0 for a group without tokens.
        first_segment: int32 ``[blocks]``, the number of the first segment of each block.
        class_begin: int32 ``[classes + 1]``: the segments of class ``c``, in the order of ids, are those listed at
            ``class_begin[c]`` to ``class_begin[c + 1]`` in the following two.
        segment_of: int32 ``[segments]``, its number.
        block_of: int32 ``[segments]``, its block.
        member_begin: int32 ``[segments + 1]``: its tokens are ``members[member_begin[i] : member_begin[i + 1]]``.
        members: int32 ``[size]``, the tokens by class, then by id.

    Complexity: O(size log size) to make; about ``10 * size + 16 * segments`` bytes on the device.
    """

    size: int
    classes: int
    block: int
    class_of: Tensor
    begin: Tensor
    places: Tensor
    groups: Tensor
    first_segment: Tensor
    class_begin: Tensor
    segment_of: Tensor
    block_of: Tensor
    member_begin: Tensor
    members: Tensor

    @classmethod
    def of(
        cls,
        class_of: NDArray[np.int32] | Tensor,
        classes: int,
        device: torch.device | str = "cpu",
        *,
        block: int | None = None,
    ) -> Self:
        """Lay out a partition.

        Args:
            class_of: int32 ``[size]``, the class of each token, from 0 to ``classes - 1``.
            classes: how many there are.
            device: where passes run.
            block: places of a block; a power of two from 64 to 4,096, which follows from ``size`` if it is not given.

        Raises:
            KernelArgumentError: an argument has another type, shape or value.
        """
        of = np.asarray(class_of.cpu().numpy() if isinstance(class_of, torch.Tensor) else class_of)
        if of.dtype != np.int32 or of.ndim != 1 or not len(of):
            raise _wrong("class_of", f"must be int32 with one entry for each token, not {of.dtype} {list(of.shape)}")
        if classes < 1 or of.min() < 0 or of.max() >= classes:
            raise _wrong("class_of", f"must be from 0 to {classes - 1}; found {of.min()} to {of.max()}")
        if block is None:
            block = min(_USUAL_BLOCK, max(_MIN_BLOCK, 1 << (len(of) - 1).bit_length()))
        if not _MIN_BLOCK <= block <= _MAX_BLOCK or block & (block - 1):
            raise _wrong("block", f"must be a power of two from {_MIN_BLOCK} to {_MAX_BLOCK}, not {block}")
        begin = [0]
        places: list[NDArray[np.int16]] = []
        groups: list[NDArray[np.int32]] = []
        present: list[NDArray[np.int32]] = []  # the class of each segment
        lengths: list[NDArray[np.int64]] = []
        while begin[-1] < len(of):
            held = of[begin[-1] : begin[-1] + _block_length(of[begin[-1] : begin[-1] + block], block // GROUP)]
            found, counts = np.unique(held, return_counts=True)
            place, group = _dealt(held, counts, block)
            begin.append(begin[-1] + len(held))
            places.append(place)
            groups.append(group)
            present.append(found)
            lengths.append(counts)
        per_block = np.array([len(found) for found in present])
        of_segment = np.concatenate(present)
        order = np.argsort(of_segment, kind="stable")
        counts = np.concatenate(lengths)[order]

        def on_device(values: NDArray[np.generic] | list[int], dtype: type[np.generic] = np.int32) -> Tensor:
            return torch.from_numpy(np.array(values, dtype=dtype)).to(device)

        return cls(
            size=len(of),
            classes=classes,
            block=block,
            class_of=on_device(of),
            begin=on_device(begin),
            places=on_device(np.stack(places), np.int16),
            groups=on_device(np.stack(groups)),
            first_segment=on_device(np.cumsum(per_block) - per_block),
            class_begin=on_device(np.searchsorted(of_segment[order], np.arange(classes + 1))),
            segment_of=on_device(order),
            block_of=on_device(np.repeat(np.arange(len(present)), per_block)[order]),
            member_begin=on_device(np.concatenate([[0], np.cumsum(counts)])),
            members=on_device(np.argsort(of, kind="stable")),
        )

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return len(self.first_segment)

    @property
    def segments(self) -> int:
        """How many segments there are: entries that a pass writes for each row."""
        return len(self.segment_of)

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.class_of.device

    def sizes(self) -> Tensor:
        """How many tokens each class has, int64 ``[classes]``."""
        return torch.bincount(self.class_of, minlength=self.classes)


def _block_length(classes: NDArray[np.int32], groups: int) -> int:
    """How many of the tokens fit into so many groups; a multiple of ``GROUP`` unless all do."""
    order = np.argsort(classes, kind="stable")
    ordered = classes[order]
    rank = np.empty(len(classes), dtype=np.int64)
    rank[order] = np.arange(len(classes)) - np.searchsorted(ordered, ordered)
    fitting = int(np.searchsorted(np.cumsum(rank % GROUP == 0), groups, side="right"))
    return fitting if fitting == len(classes) else fitting // GROUP * GROUP


def _dealt(
    classes: NDArray[np.int32], counts: NDArray[np.int64], block: int
) -> tuple[NDArray[np.int16], NDArray[np.int32]]:
    """The places and groups of one block, whose segments have these counts of tokens."""
    places = np.full(block, -1, dtype=np.int16)
    groups = np.zeros(block // GROUP, dtype=np.int32)
    of_segment = -(-counts // GROUP)
    stops = np.cumsum(of_segment)
    starts = stops - of_segment
    shift = GROUP * starts - (np.cumsum(counts) - counts)  # from the rank of a token to its place
    places[np.arange(len(classes)) + np.repeat(shift, counts)] = np.argsort(classes, kind="stable")
    groups[: stops[-1]] = 4 * np.repeat(np.arange(len(counts)), of_segment)
    groups[starts] += 1
    groups[stops - 1] += 2
    return places, groups


def _wrong(argument: str, problem: str) -> KernelArgumentError:
    return KernelArgumentError("class_layout", argument, problem)
