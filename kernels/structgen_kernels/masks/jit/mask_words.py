"""Mask words of a row of logits, computed from its codes: see ``structgen_kernels.masks.mask_rows``."""

from typing import Any, NamedTuple

import triton
import triton.language as tl


class MaskArgs(NamedTuple):
    """The mask arguments of a kernel, as one tuple, which Triton flattens (Triton 3.3 or later).

    ``CODES`` and ``SPARSE_WORDS`` are compile-time constants, wrapped in ``tl.constexpr``.
    """

    dense_ptr: Any  # int32 [dense_rows, words]
    dense_stride: int
    dense_rows: int
    sparse_ptr: Any  # int32 [sparse rows, 2 + 2 * SPARSE_WORDS]
    codes_ptr: Any  # int32 [logits rows, CODES]
    CODES: tl.constexpr
    SPARSE_WORDS: tl.constexpr


@triton.jit
def _table_words(masks, row, word, live):
    """Return the words [N] of one table row; 0 where not ``live``."""
    if row < masks.dense_rows:
        words = tl.load(masks.dense_ptr + row.to(tl.int64) * masks.dense_stride + word, mask=live, other=0)
    else:
        slot = masks.sparse_ptr + (row - masks.dense_rows).to(tl.int64) * (2 + 2 * masks.SPARSE_WORDS)
        default = tl.load(slot)
        # Binary search: how many of the ascending word indices are smaller.  SPARSE_WORDS + 1 is a power of two.
        below = word * 0
        step: tl.constexpr = (masks.SPARSE_WORDS + 1) // 2
        for halving in tl.static_range(12):
            if (step >> halving) > 0:
                probe = below + (step >> halving) - 1
                below = tl.where(tl.load(slot + 2 + probe) < word, below + (step >> halving), below)
        inside = live & (below < masks.SPARSE_WORDS)
        is_there = inside & (tl.load(slot + 2 + below, mask=inside, other=-1) == word)
        words = tl.load(slot + 2 + masks.SPARSE_WORDS + below, mask=is_there, other=0)
        words = tl.where(is_there, words, tl.where(live, default, 0))
    return words


@triton.jit
def allowed_words(
    masks,  # MaskArgs
    row,  # int64, the logits row
    size,
    word,  # int32 [N], word indices
):
    """Return the mask words [N] of one logits row; bits from ``size`` on are 0."""
    live = word < (size + 31) // 32
    included = word * 0
    excluded = word * 0
    named = 0
    for index in tl.static_range(masks.CODES):
        code = tl.load(masks.codes_ptr + row * masks.CODES + index)
        if code >= 0:
            included |= _table_words(masks, code, word, live)
            named = 1
        elif code < -1:
            excluded |= _table_words(masks, -2 - code, word, live)
    if named == 0:
        included = word * 0 - 1
    left = size - word * 32
    tail = tl.where(left >= 32, -1, tl.where(left <= 0, 0, (1 << tl.maximum(tl.minimum(left, 31), 0)) - 1))
    return included & ~excluded & tail


@triton.jit
def allowed_bytes(words, WORDS: tl.constexpr):
    """Return the bytes, int32 [WORDS * 4], of the words [WORDS], in ascending order of columns."""
    return tl.reshape((words[:, None] >> (tl.arange(0, 4) * 8)[None, :]) & 255, [WORDS * 4])


@triton.jit
def allowed_columns(words, WORDS: tl.constexpr):
    """Return which columns [WORDS * 32] the words [WORDS] allow, as int1."""
    byte = allowed_bytes(words, WORDS)  # one shift for 8 columns, whose bits are constants of the code
    return tl.reshape((byte[:, None] & (1 << tl.arange(0, 8))[None, :]) != 0, [WORDS * 32])
