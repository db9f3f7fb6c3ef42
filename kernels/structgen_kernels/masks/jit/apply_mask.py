"""The kernel of ``structgen_kernels.masks.apply_mask``."""

import triton
import triton.language as tl

from structgen_kernels.masks.jit.mask_words import allowed_columns, allowed_words


@triton.jit
def apply_mask_kernel(
    logits_ptr,  # [rows, columns]
    logits_stride,
    columns,
    masks,  # MaskArgs
    size,
    WORDS: tl.constexpr,  # words per program, of 32 columns each
):
    """One program per row and block of columns.  Logits are not read; allowed logits are not written."""
    row = tl.program_id(0).to(tl.int64)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    words = allowed_words(masks, row, size, word)
    column = tl.program_id(1) * WORDS * 32 + tl.arange(0, WORDS * 32)
    excluded = ~allowed_columns(words, WORDS)
    tl.store(logits_ptr + row * logits_stride + column, float("-inf"), mask=excluded & (column < columns))
