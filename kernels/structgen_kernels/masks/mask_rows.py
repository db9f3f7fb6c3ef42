"""Token masks of rows of logits, as unions and differences of the rows of a table on the device.

A table stores masks in two forms.  A *dense* row is a bitmask: bit ``i & 31`` of word ``i >> 5`` for token ``i``.  A
*sparse* row is a default word, 0 or all ones, and the words that differ from the default.  Most words are equal if a
grammar allows one of four keywords, or any token without a quotation mark.  Dense rows are numbered first, then sparse
rows.

The mask of a row of logits is a short list of *codes*, int32: ``r >= 0`` includes row ``r``, ``without(r)`` excludes
row ``r``, and ``NOTHING`` is padding.  The mask is the union of the included rows, or all tokens if none is included,
less the excluded rows.  Tokens from ``size`` on are never allowed, whatever the bits of a row are.
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
"""The code for padding."""

SPARSE_WORDS: Final = 127
"""The most words of a sparse row that differ from the default; 2**k - 1, for the binary search in kernels."""

MAX_CODES: Final = 8
"""The most codes per row of logits.  Kernels read them one after the other."""

_ABSENT: Final = 2**31 - 1


def without(row: int) -> int:
    """Return the code that excludes a row."""
    return -2 - row


@final
@dataclass(frozen=True, slots=True)
class MaskTable:
    """The masks that codes refer to.

    Attributes:
        size: the number of tokens of the vocabulary.
        dense: int32 ``[rows, words]``, with ``words`` at least ``ceil(size / 32)``; rows may be strided.
        sparse: int32 ``[rows, 2 + 2 * SPARSE_WORDS]``, contiguous: the default word, the count of words that differ
            from the default, the indices of these words, ascending and padded with the largest int32, and the words.

    Raises:
        KernelArgumentError: a tensor has another dtype or shape, or the devices differ.
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
        """Words per bitmask, ``ceil(size / 32)``."""
        return (self.size + 31) // 32

    @property
    def device(self) -> torch.device:
        """The device of the table."""
        return self.dense.device

    def expanded(self, rows: Tensor) -> Tensor:
        """Return the words of rows, int32 ``[n, words]``, for row numbers int64 ``[n]``; bits from ``size`` on stay."""
        words = self.dense.new_zeros((len(rows), self.words))
        is_dense = rows < len(self.dense)
        words[is_dense] = self.dense[rows[is_dense], : self.words]
        held = self.sparse[rows[~is_dense] - len(self.dense)]
        spread = held[:, :1].expand(-1, self.words + 1).clone()  # the last column takes the padding
        numbers = held[:, 2 : 2 + SPARSE_WORDS].clamp(max=self.words).to(torch.int64)
        spread.scatter_(1, numbers, held[:, 2 + SPARSE_WORDS :])
        words[~is_dense] = spread[:, : self.words]
        return words


@final
@dataclass(frozen=True, slots=True)
class MaskRows:
    """The mask of each row of logits.

    Attributes:
        table: the masks that the codes refer to.
        codes: int32 ``[rows, n]`` with ``n`` at most ``MAX_CODES``; contiguous.

    Raises:
        KernelArgumentError: the codes have another dtype or shape, or are on another device than the table.
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
        """Make masks from a bitmask, int32 ``[rows, words]``, with one row per row of logits."""
        rows = torch.arange(len(bitmask), dtype=torch.int32, device=bitmask.device)
        return cls(MaskTable(size, bitmask, _no_sparse(bitmask.device)), rows[:, None])

    @classmethod
    def everything(cls, rows: int, size: int, device: torch.device) -> Self:
        """Make masks that allow every token in each row."""
        dense = torch.zeros((0, (size + 31) // 32), dtype=torch.int32, device=device)
        codes = torch.full((rows, 1), NOTHING, dtype=torch.int32, device=device)
        return cls(MaskTable(size, dense, _no_sparse(device)), codes)

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def size(self) -> int:
        """The number of tokens of the vocabulary."""
        return self.table.size

    def allowed(self) -> Tensor:
        """Return which tokens are allowed, bool ``[rows, size]``.

        Kernels compute the same from the codes without storing it; this is their reference implementation.
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
        """Return the mask arguments of kernels, as one tuple."""
        from triton.language import constexpr

        from structgen_kernels.masks.jit.mask_words import MaskArgs

        table = self.table
        counts = constexpr(self.codes.shape[1]), constexpr(SPARSE_WORDS)
        return MaskArgs(table.dense, table.dense.stride(0), len(table.dense), table.sparse, self.codes, *counts)


def _no_sparse(device: torch.device) -> Tensor:
    return torch.zeros((0, 2 + 2 * SPARSE_WORDS), dtype=torch.int32, device=device)
