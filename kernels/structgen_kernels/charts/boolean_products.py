"""Products of boolean matrices in packed bits: a word is 32 columns, and a row of a product is a bitwise OR of rows.

A product of matrices ``[n, n]`` with ``ceil(n / 32)`` words per row reads at most ``n * n * ceil(n / 32)`` words; one
of bytes or floats reads ``n ** 3`` elements.  A row of the right matrix is read only if its bit is set in the row of
the left matrix.  *Span* matrices relate a boundary to later ones, so they are upper triangular, and products read only
the boundaries between.

One program computes a row of an output from all products that contribute to it.  There are no atomics, and the result
does not depend on the order of programs.

Source: L. Valiant, "General context-free recognition in less than cubic time" (1975), for recognition as products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, final

import numpy as np
import torch

from structgen_kernels.arguments import check_tensor
from structgen_kernels.dispatch import backend_for
from structgen_kernels.errors import KernelArgumentError
from structgen_kernels.launch import launch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

__all__ = ["Pairs", "boolean_products", "packed_bits", "unpacked_bits"]


_WORDS: Final = 64
"""Words per program, one per thread."""


@final
@dataclass(frozen=True, slots=True)
class Pairs:
    """A list of pairs of numbers for each item, on a device, in CSR layout.

    Attributes:
        begin: int32 ``[items + 1]``: item ``i`` has the pairs ``begin[i]`` to ``begin[i + 1]``.
        first: int32 ``[pairs]``, the first number of each pair.
        second: int32 ``[pairs]``, the second number of each pair.
    """

    begin: Tensor
    first: Tensor
    second: Tensor

    @classmethod
    def of(
        cls, pairs: NDArray[np.int32] | Sequence[tuple[int, int, int]], items: int, device: torch.device | str
    ) -> Self:
        """Make lists from rows (item, first, second) in any order; duplicates are removed.

        Raises:
            KernelArgumentError: an item is not below ``items``.
        """
        rows = np.unique(np.asarray(pairs, dtype=np.int32).reshape(-1, 3), axis=0)
        if len(rows) and not 0 <= rows[0, 0] <= rows[-1, 0] < items:
            raise KernelArgumentError("pairs", "items", f"must be from 0 to {items - 1}")
        begin = np.zeros(items + 1, dtype=np.int32)
        np.cumsum(np.bincount(rows[:, 0], minlength=items), out=begin[1:])

        def on_device(values: NDArray[np.int32]) -> Tensor:
            return torch.tensor(values, dtype=torch.int32).to(device)

        return cls(on_device(begin), on_device(rows[:, 1]), on_device(rows[:, 2]))

    def __len__(self) -> int:
        return len(self.begin) - 1

    def owners(self) -> Tensor:
        """Return the item of each pair, int64 ``[pairs]``."""
        counts = (self.begin[1:] - self.begin[:-1]).to(torch.int64)
        return torch.repeat_interleave(torch.arange(len(self), device=self.begin.device), counts)

    def arguments(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the arguments of kernels."""
        return self.begin, self.first, self.second


def packed_bits(matrices: Tensor) -> Tensor:
    """Pack bool ``[..., m]`` into int32 ``[..., ceil(m / 32)]``: bit ``j & 31`` of word ``j >> 5`` for column ``j``."""
    columns = matrices.shape[-1]
    words = -(-columns // 32)
    bits = torch.nn.functional.pad(matrices.to(torch.int64), (0, words * 32 - columns))
    shifts = torch.arange(32, device=matrices.device)
    packed = (bits.view(*matrices.shape[:-1], words, 32) << shifts).sum(-1)
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)


def unpacked_bits(words: Tensor, columns: int) -> Tensor:
    """Unpack words into columns, bool ``[..., columns]``."""
    shifts = torch.arange(32, dtype=torch.int32, device=words.device)
    return ((words.unsqueeze(-1) >> shifts) & 1).to(torch.bool).flatten(-2)[..., :columns]


def row_block(words: int) -> dict[str, int]:
    """Return the compile-time constants of kernels: a program computes ``LANES`` rows of ``WORDS`` words."""
    width = 1 << (max(words, 1) - 1).bit_length()
    return {"LANES": max(1, _WORDS // width), "WORDS": width, "num_warps": 2}


def boolean_products(left: Tensor, right: Tensor, triples: Pairs, out: Tensor, *, is_span: bool = False) -> None:
    """Or products into matrices: ``out[o] |= left[l] @ right[r]`` for each triple.

    Args:
        left: int32 ``[left items, n, ceil(k / 32)]``, contiguous; bits of columns from ``k`` on are ignored.
        right: int32 ``[right items, k, ceil(m / 32)]``, contiguous.
        triples: for each item of ``out``, pairs of a left and a right item.
        out: int32 ``[items, n, ceil(m / 32)]``, contiguous; it must not overlap the others.
        is_span: whether all matrices are square span matrices: bits below the diagonal of ``left`` are ignored, and
            those of ``right`` must be 0.

    Raises:
        KernelArgumentError: an argument has the wrong dtype, shape or device.

    Complexity: at most ``n * k * ceil(m / 32)`` words of the right matrix per triple; half as many, or a sixth, for
        span matrices.
    Bytes: four times that, mostly from the cache; each row of ``out`` is read once and written once.
    """
    device = out.device
    check_tensor("boolean_products", "out", out, dtype=torch.int32, dims=3)
    check_tensor("boolean_products", "left", left, dtype=torch.int32, dims=3, device=device)
    check_tensor("boolean_products", "right", right, dtype=torch.int32, dims=3, device=device)
    for name, tensor in (("left", left), ("right", right), ("out", out)):
        if not tensor.is_contiguous():
            raise KernelArgumentError("boolean_products", name, "must be contiguous")
    rows, inner = out.shape[1], right.shape[1]
    if left.shape[1:] != (rows, (inner + 31) // 32):
        raise KernelArgumentError("boolean_products", "left", f"do not match the others in shape: {list(left.shape)}")
    if right.shape[2] != out.shape[2] or (is_span and inner != rows):
        raise KernelArgumentError("boolean_products", "right", f"do not match the output in shape: {list(right.shape)}")
    if len(triples) != len(out) or triples.begin.device != device:
        raise KernelArgumentError("boolean_products", "triples", f"must have {len(out)} items on {str(device)!r}")
    if backend_for(device) == "torch":
        _reference(left, right, triples, out, is_span=is_span)
    elif out.numel():
        from structgen_kernels.charts.jit.boolean_products import boolean_products_kernel

        block = row_block(out.shape[2])
        grid = (-(-len(out) // block["LANES"]), rows)
        launch(
            boolean_products_kernel,
            grid,
            left,
            right,
            *triples.arguments(),
            out,
            len(out),
            rows,
            inner,
            left.shape[2],
            out.shape[2],
            SPAN=is_span,
            BITS=bits_of(inner),
            **block,
        )


def bits_of(inner: int) -> int:
    """Return how many rows of a right matrix kernels load at a time: those of a word, or all if there are fewer."""
    return min(32, max(inner, 1))


def _reference(left: Tensor, right: Tensor, triples: Pairs, out: Tensor, *, is_span: bool) -> None:
    inner, columns = right.shape[1], right.shape[2] * 32
    one = unpacked_bits(left, inner)[triples.first.to(torch.int64)]
    two = unpacked_bits(right, columns)[triples.second.to(torch.int64)]
    if is_span:
        one = one.triu()
    product = (one.to(torch.float32) @ two.to(torch.float32) > 0).to(torch.int32)
    made = product.new_zeros((*out.shape[:2], columns)).index_add_(0, triples.owners(), product)
    out |= packed_bits(made > 0)
