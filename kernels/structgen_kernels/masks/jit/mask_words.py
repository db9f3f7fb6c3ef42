"""Mask words of a row of logits, found on the fly: see ``structgen_kernels.masks.mask_rows`` for what codes mean."""

import triton
import triton.language as tl


@triton.jit
def _row_words(dense_ptr, dense_stride, dense_rows, sparse_ptr, row, word, live, SPARSE_WORDS: tl.constexpr):
    """The words [N] of one row of the table; 0 where not ``live``."""
    if row < dense_rows:
        found = tl.load(dense_ptr + row.to(tl.int64) * dense_stride + word, mask=live, other=0)
    else:
        slot = sparse_ptr + (row - dense_rows).to(tl.int64) * (2 + 2 * SPARSE_WORDS)
        default = tl.load(slot)
        # How many of the numbers, which ascend, are smaller: SPARSE_WORDS is one less than a power of two.
        below = word * 0
        step: tl.constexpr = (SPARSE_WORDS + 1) // 2
        for halving in tl.static_range(12):
            if (step >> halving) > 0:
                probe = below + (step >> halving) - 1
                below = tl.where(tl.load(slot + 2 + probe) < word, below + (step >> halving), below)
        inside = live & (below < SPARSE_WORDS)
        is_there = inside & (tl.load(slot + 2 + below, mask=inside, other=-1) == word)
        found = tl.load(slot + 2 + SPARSE_WORDS + below, mask=is_there, other=0)
        found = tl.where(is_there, found, tl.where(live, default, 0))
    return found


@triton.jit
def allowed_words(
    dense_ptr,  # int32 [dense_rows, words]
    dense_stride,
    dense_rows,
    sparse_ptr,  # int32 [sparse rows, 2 + 2 * SPARSE_WORDS]
    codes_ptr,  # int32 [CODES], those of this row of logits
    size,
    word,  # int32 [N], which words
    CODES: tl.constexpr,
    SPARSE_WORDS: tl.constexpr,
):
    """Return the words [N] of what one row of logits may hold; bits from ``size`` on are 0."""
    live = word < (size + 31) // 32
    included = word * 0
    excluded = word * 0
    named = 0
    for index in tl.static_range(CODES):
        code = tl.load(codes_ptr + index)
        if code >= 0:
            included |= _row_words(dense_ptr, dense_stride, dense_rows, sparse_ptr, code, word, live, SPARSE_WORDS)
            named = 1
        elif code < -1:
            row = -2 - code
            excluded |= _row_words(dense_ptr, dense_stride, dense_rows, sparse_ptr, row, word, live, SPARSE_WORDS)
    if named == 0:
        included = word * 0 - 1
    left = size - word * 32
    tail = tl.where(left >= 32, -1, tl.where(left <= 0, 0, (1 << tl.maximum(tl.minimum(left, 31), 0)) - 1))
    return included & ~excluded & tail


@triton.jit
def allowed_columns(words, WORDS: tl.constexpr):
    """Return which of the columns [WORDS * 32] words [WORDS] allow, as int1."""
    bits = (words[:, None] >> tl.arange(0, 32)[None, :]) & 1  # [WORDS, 32]
    return tl.reshape(bits, [WORDS * 32]) != 0
