"""The kernel of ``structgen_kernels.masks.apply_mask``."""

import triton
import triton.language as tl

from structgen_kernels.masks.jit.mask_words import allowed_bytes, allowed_columns, allowed_words


@triton.jit
def apply_mask_kernel(
    logits_ptr,  # [rows, columns]
    logits_stride,
    columns,
    masks,  # MaskArgs
    size,
    ALIGNED: tl.constexpr,  # whether each row starts at a multiple of 16 bytes
    WORDS: tl.constexpr,  # words per program, of 32 columns each
):
    """One program per row and block of columns.

    If rows are aligned, a thread holds groups of 8 columns, one byte of the mask.  It reads a group only if some of its
    columns are allowed and some are not, and writes it unless all are allowed.  Both are conditions of whole groups, so
    accesses are of 16 bytes.  A condition of single columns would make each column an access of its own.
    """
    row = tl.program_id(0).to(tl.int64)
    begin = tl.program_id(1) * (WORDS * 32)
    row_ptr = logits_ptr + row * logits_stride
    words = allowed_words(masks, row, size, tl.program_id(1) * WORDS + tl.arange(0, WORDS))
    if ALIGNED:
        row_ptr = tl.multiple_of(row_ptr, 16)
        byte = allowed_bytes(words, WORDS)  # [groups]
        first = begin + tl.arange(0, WORDS * 4) * 8  # [groups]
        place = row_ptr + first[:, None] + tl.arange(0, 8)[None, :]
        is_written = (byte != 255) & (first <= columns - 8)
        is_read = is_written & (byte != 0)
        logits = tl.load(place, mask=tl.broadcast_to(is_read[:, None], place.shape), other=float("-inf"))
        logits = tl.where((byte[:, None] & (1 << tl.arange(0, 8))[None, :]) != 0, logits, float("-inf"))
        tl.store(place, logits, mask=tl.broadcast_to(is_written[:, None], place.shape))
        whole = columns // 8 * 8
        if (whole < columns) & (begin <= whole) & (whole < begin + WORDS * 32):  # the last group has fewer columns
            last = tl.sum(tl.where(first == whole, byte, 0), 0)
            rest = tl.arange(0, 8)
            is_excluded = (last & (1 << rest)) == 0
            tl.store(row_ptr + whole + rest, float("-inf"), mask=is_excluded & (whole + rest < columns))
    else:
        column = begin + tl.arange(0, WORDS * 32)
        is_excluded = ~allowed_columns(words, WORDS)
        tl.store(row_ptr + column, float("-inf"), mask=is_excluded & (column < columns))
