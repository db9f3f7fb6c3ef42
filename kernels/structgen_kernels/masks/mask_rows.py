"""Which tokens each row of logits may hold: rows of a table on the device, united and subtracted there.

A table holds masks in two forms.  A *dense* row is a bitmask: bit ``i & 31`` of word ``i >> 5`` for token ``i``.  A
*sparse* row is a default word, 0 or all ones, and the few words that differ from it: where a grammar wants one of four
keywords, or anything but a quotation mark, most words are alike.  Dense rows are numbered first, then sparse ones.

What a row of logits may hold is said by a short list of *codes*, int32: ``r >= 0`` allows what row ``r`` does,
``without(r)`` forbids it, and ``NOTHING`` is a code to fill up with.  Allowed is what any row allows, or everything
where no row is named, less what is forbidden.  Whatever the bits of a row say, no token from ``size`` on is allowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, final

import torch

from structgen_kernels.arguments import check_tensor
from structgen_kernels.errors import KernelArgumentError

if TYPE_CHECKING:
    from torch import Tensor

    from structgen_kernels.masks.jit.mask_words import MaskArgs

__all__ = ["MAX_CODES", "NOTHING", "SPARSE_WORDS", "MaskRows", "MaskTable", "without"]

NOTHING: Final = -1
"""The code that says nothing."""

SPARSE_WORDS: Final = 127
"""Words of a sparse row that may differ from its default; one less than a power of two, for they are searched."""

MAX_CODES: Final = 8
"""Codes of one row of logits, at most: each is looked at in turn."""

_ABSENT: Final = 2**31 - 1


def without(row: int) -> int:
    """The code that forbids what a row allows."""
    return -2 - row


@final
@dataclass(frozen=True, slots=True)
class MaskTable:
    """The masks that codes refer to.

    Attributes:
        size: tokens of the vocabulary.
        dense: int32 ``[rows, words]``, with ``words`` at least ``ceil(size / 32)``; rows may lie apart.
        sparse: int32 ``[rows, 2 + 2 * SPARSE_WORDS]``, contiguous: the default word, how many words differ from it, the
            numbers of these, ascending and filled up with the largest int32, and the words themselves.

    Raises:
        KernelArgumentError: a tensor has another type or shape, or they are on different devices.
    """

    size: int
    dense: Tensor
    sparse: Tensor

    def __post_init__(self) -> None:
        check_tensor("mask table", "dense", self.dense, dtype=torch.int32, dims=2)
        width = 2 + 2 * SPARSE_WORDS
        device = self.dense.device
        check_tensor("mask table", "sparse", self.sparse, dtype=torch.int32, shape=(None, width), device=device)
        if not self.sparse.is_contiguous():
            raise KernelArgumentError("mask table", "sparse", "must be contiguous")
        if self.size < 1:
            raise KernelArgumentError("mask table", "size", f"must be at least 1, not {self.size}")
        if self.dense.shape[1] < self.words:
            raise KernelArgumentError(
                "mask table", "dense", f"has {self.dense.shape[1]} words, where {self.size} tokens take {self.words}"
            )

    @property
    def words(self) -> int:
        """Words of a bitmask, ``ceil(size / 32)``."""
        return (self.size + 31) // 32

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.dense.device

    def expanded(self, rows: Tensor) -> Tensor:
        """The words of rows, int32 ``[n, words]``, for row numbers int64 ``[n]``, whose bits from ``size`` on count."""
        words = self.dense.new_zeros((len(rows), self.words))
        is_dense = rows < len(self.dense)
        words[is_dense] = self.dense[rows[is_dense], : self.words]
        held = self.sparse[rows[~is_dense] - len(self.dense)]
        spread = held[:, :1].expand(-1, self.words + 1).clone()  # one more column, for words that are not there
        numbers = held[:, 2 : 2 + SPARSE_WORDS].clamp(max=self.words).to(torch.int64)
        spread.scatter_(1, numbers, held[:, 2 + SPARSE_WORDS :])
        words[~is_dense] = spread[:, : self.words]
        return words


@final
@dataclass(frozen=True, slots=True)
class MaskRows:
    """What each row of logits may hold.

    Attributes:
        table: the masks.
        codes: int32 ``[rows, n]`` with ``n`` at most ``MAX_CODES``; contiguous.

    Raises:
        KernelArgumentError: the codes have another type or shape, or are on another device than the table.
    """

    table: MaskTable
    codes: Tensor

    def __post_init__(self) -> None:
        device = self.table.device
        check_tensor("masks", "codes", self.codes, dtype=torch.int32, dims=2, device=device)
        if not self.codes.is_contiguous() or not 1 <= self.codes.shape[1] <= MAX_CODES:
            raise KernelArgumentError(
                "masks", "codes", f"must be contiguous, with 1 to {MAX_CODES} a row; found {list(self.codes.shape)}"
            )

    @classmethod
    def of_bitmask(cls, bitmask: Tensor, size: int) -> Self:
        """Masks that are a bitmask, int32 ``[rows, words]``, one row for each row of logits."""
        rows = torch.arange(len(bitmask), dtype=torch.int32, device=bitmask.device)
        return cls(MaskTable(size, bitmask, _no_sparse(bitmask.device)), rows[:, None])

    @classmethod
    def everything(cls, rows: int, size: int, device: torch.device) -> Self:
        """Masks that allow every token in each row."""
        dense = torch.zeros((0, (size + 31) // 32), dtype=torch.int32, device=device)
        codes = torch.full((rows, 1), NOTHING, dtype=torch.int32, device=device)
        return cls(MaskTable(size, dense, _no_sparse(device)), codes)

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def size(self) -> int:
        """Tokens of the vocabulary."""
        return self.table.size

    def allowed(self) -> Tensor:
        """Which tokens are allowed, bool ``[rows, size]``.

        The reference implementation of what kernels do on the fly.
        """
        table, codes = self.table, self.codes.to(torch.int64)
        included = self.table.dense.new_zeros((len(codes), table.words))
        excluded = included.clone()
        for code in codes.T:
            allows, forbids = (code >= 0).nonzero()[:, 0], (code < NOTHING).nonzero()[:, 0]
            included[allows] |= table.expanded(code[allows])
            excluded[forbids] |= table.expanded(-2 - code[forbids])
        included[~(codes >= 0).any(1)] = -1
        words = included & ~excluded
        shifts = torch.arange(32, dtype=torch.int32, device=words.device)
        return ((words[:, :, None] >> shifts) & 1).to(torch.bool).flatten(1)[:, : table.size]

    def arguments(self) -> MaskArgs:
        """Return the bundle of mask arguments that kernels take."""
        from triton.language import constexpr

        from structgen_kernels.masks.jit.mask_words import MaskArgs

        table = self.table
        counts = constexpr(self.codes.shape[1]), constexpr(SPARSE_WORDS)
        return MaskArgs(table.dense, table.dense.stride(0), len(table.dense), table.sparse, self.codes, *counts)


def _no_sparse(device: torch.device) -> Tensor:
    return torch.zeros((0, 2 + 2 * SPARSE_WORDS), dtype=torch.int32, device=device)
