"""The kernel of ``structgen_kernels.choices.masked_argmax``."""

import triton
import triton.language as tl

from structgen_kernels.choices.jit.chunk_summary import row_outcome, store_outcome
from structgen_kernels.masks.jit.mask_words import allowed_columns, allowed_words


@triton.jit
def chunk_logits(
    logits_ptr,  # of this row
    masks,
    row,  # int64
    size,
    chunk,  # int32 [N]; chunks beyond the vocabulary have no allowed columns
    N: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Return the columns of chunks, int32 [N * CHUNK], and their logits, minus infinity if not allowed.

    Logits that are not allowed are read too: under a mask of single columns, each would be a load of its own.
    """
    chunk_words: tl.constexpr = CHUNK // 32
    word = tl.reshape(chunk[:, None] * chunk_words + tl.arange(0, chunk_words)[None, :], [N * chunk_words])
    words = allowed_words(masks, row, size, word)
    column = chunk[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
    logits = tl.load(logits_ptr + column, mask=column < size, other=float("-inf")).to(tl.float32)
    allowed = allowed_columns(words, N * chunk_words)
    logits = tl.where(allowed, tl.reshape(logits, [N * CHUNK]), float("-inf"))
    return tl.reshape(column, [N * CHUNK]), logits


@triton.jit
def masked_argmax_kernel(
    logits_ptr,  # [rows, columns]
    logits_stride,
    masks,  # MaskArgs
    size,
    maxima_ptr,  # float32 [rows, chunks]
    sums_ptr,
    chunks_stride,
    splits_ptr,  # float32 [rows, 5, splits]
    splits_stride,
    fields_stride,
    tokens_ptr,  # int32 [rows]
    log_p_ptr,  # float32 [rows]
    log_z_ptr,
    log_mass_ptr,
    status_ptr,  # int32 [rows]
    CHUNK: tl.constexpr,
    SPLIT: tl.constexpr,
    CHUNKS: tl.constexpr,  # per row, rounded up to a power of two
    SPLITS: tl.constexpr,
):
    """One program per row: the best chunk, then the first column of that chunk with the maximum."""
    row = tl.program_id(0).to(tl.int64)
    status, log_z, log_mass, kept_top, kept_sum = row_outcome(
        splits_ptr + row * splits_stride, fields_stride, (size + SPLIT - 1) // SPLIT, SPLITS
    )
    chunk = tl.arange(0, CHUNKS)
    live = chunk < (size + CHUNK - 1) // CHUNK
    maxima = tl.load(maxima_ptr + row * chunks_stride + chunk, mask=live, other=float("-inf"))
    best = tl.min(tl.where(maxima == kept_top, chunk, CHUNKS - 1), 0)
    column, logits = chunk_logits(
        logits_ptr + row * logits_stride,
        masks,
        row,
        size,
        best + tl.arange(0, 1),
        1,
        CHUNK,
    )
    token = tl.min(tl.where(logits == kept_top, column, size), 0)
    store_outcome(
        row,
        token,
        kept_top,
        status,
        log_z,
        log_mass,
        kept_top,
        kept_sum,
        tokens_ptr,
        log_p_ptr,
        log_z_ptr,
        log_mass_ptr,
        status_ptr,
    )
