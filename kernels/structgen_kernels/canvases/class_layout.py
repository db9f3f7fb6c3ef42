"""The layout of a partition of the vocabulary, for kernels that reduce rows of logits by class.

The vocabulary is cut into *blocks* of contiguous ids, so that loads of logits are coalesced.  In a block the tokens of
each class form a *segment*.  A segment is split into *groups* of ``GROUP`` places, the last one padded.  A thread
reduces a group by itself; only the results of groups are scanned across threads.  A block ends when its groups are used
up, so rare classes make it shorter, and at a multiple of ``GROUP``, so that loads are vectorized.

A pass writes one entry per segment, in order of blocks, then of classes.  Readers go from a class to its segments in
order of blocks, and so in order of ids.
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
"""Places per group."""

_MIN_BLOCK: Final = 64
_USUAL_BLOCK: Final = 2048
_MAX_BLOCK: Final = 4096


@final
@dataclass(frozen=True, slots=True, eq=False)
class ClassLayout:
    """The tokens of each class, by block and segment; immutable, made once per partition.

    Attributes:
        size: the number of tokens of the vocabulary.
        classes: the number of classes; some may have no tokens.
        block: places per block, the most tokens of a block; a power of two.
        class_of: int32 ``[size]``, the class of each token.
        begin: int32 ``[blocks + 1]``, the first token of each block.
        places: int16 ``[blocks, block]``, the token at each place, relative to the first token of the block; -1 for
            padding.
        groups: int32 ``[blocks, block / GROUP]``: ``4 * n + 2 * is_last + is_first`` for a group of the ``n``-th
            segment of the block; 0 for a group without tokens.
        first_segment: int32 ``[blocks]``, the number of the first segment of each block.
        class_begin: int32 ``[classes + 1]``: entries ``class_begin[c]`` to ``class_begin[c + 1]`` of the next three are
            the segments of class ``c``, in order of ids.
        segment_of: int32 ``[segments]``, the number of the segment.
        block_of: int32 ``[segments]``, the block of the segment.
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
            classes: the number of classes.
            device: the device of the kernels.
            block: places per block, a power of two from 64 to 4,096; None chooses it by ``size``.

        Raises:
            KernelArgumentError: an argument has the wrong dtype, shape or value.
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
        """The number of blocks."""
        return len(self.first_segment)

    @property
    def segments(self) -> int:
        """The number of segments: the entries that a pass writes per row."""
        return len(self.segment_of)

    @property
    def device(self) -> torch.device:
        """The device of the layout."""
        return self.class_of.device

    def sizes(self) -> Tensor:
        """Return the number of tokens of each class, int64 ``[classes]``."""
        return torch.bincount(self.class_of, minlength=self.classes)


def _block_length(classes: NDArray[np.int32], groups: int) -> int:
    """Return how many tokens fit into ``groups`` groups; a multiple of ``GROUP`` unless all fit."""
    order = np.argsort(classes, kind="stable")
    ordered = classes[order]
    rank = np.empty(len(classes), dtype=np.int64)
    rank[order] = np.arange(len(classes)) - np.searchsorted(ordered, ordered)
    fitting = int(np.searchsorted(np.cumsum(rank % GROUP == 0), groups, side="right"))
    return fitting if fitting == len(classes) else fitting // GROUP * GROUP


def _dealt(
    classes: NDArray[np.int32], counts: NDArray[np.int64], block: int
) -> tuple[NDArray[np.int16], NDArray[np.int32]]:
    """Return the places and groups of one block, given the number of tokens of each segment."""
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
