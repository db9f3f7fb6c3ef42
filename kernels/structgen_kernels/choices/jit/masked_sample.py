"""The kernel of ``structgen_kernels.choices.masked_sample``."""

import triton
import triton.language as tl

from structgen_kernels.choices.jit.chunk_summary import inverse_temperature, row_outcome, store_outcome
from structgen_kernels.choices.jit.draws import whole_draw
from structgen_kernels.choices.jit.truncated_draw import truncated_draw


@triton.jit
def masked_sample_kernel(
    logits_ptr,  # [rows, columns]
    logits_stride,
    masks,  # MaskArgs
    size,
    temperature_ptr,  # [rows]
    top_k_ptr,  # int32 [rows]
    top_p_ptr,  # [rows]
    min_p_ptr,  # [rows]
    chance_ptr,  # int64 [rows], seeds; or float64 [rows], uniform numbers
    offset_ptr,  # int64 [rows]; None for uniform numbers
    maxima_ptr,  # float32 [rows, chunks]
    sums_ptr,  # float32 [rows, chunks]
    chunks_stride,
    splits_ptr,  # float32 [rows, 5, splits]
    splits_stride,
    fields_stride,
    survivors_ptr,  # int32 [rows, chunks]
    columns_ptr,  # int32 [rows, CANDIDATES]
    values_ptr,  # float32 [rows, CANDIDATES]
    tokens_ptr,  # int32 [rows]
    log_p_ptr,  # float32 [rows]
    log_z_ptr,
    log_mass_ptr,
    status_ptr,  # int32 [rows]
    CHUNK: tl.constexpr,
    SPLIT: tl.constexpr,
    CHUNKS: tl.constexpr,  # per row, rounded up to a power of two
    SPLITS: tl.constexpr,
    CHUNK_STREAM: tl.constexpr,
    TOKEN_STREAM: tl.constexpr,
    SHIFT: tl.constexpr,  # see order_key
    NONE: tl.constexpr,  # the key of minus infinity
    REACH: tl.constexpr,  # chunks per step of the gather
    CANDIDATES: tl.constexpr,  # the most candidates that are gathered
    PIVOTS: tl.constexpr,
):
    """One program per row: works on the summary of its chunks, then reads the chunks that matter again."""
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * logits_stride
    status, log_z, log_mass, top, kept_sum = row_outcome(
        splits_ptr + row * splits_stride, fields_stride, (size + SPLIT - 1) // SPLIT, SPLITS
    )
    temperature = tl.load(temperature_ptr + row).to(tl.float64)
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row).to(tl.float64)
    min_p = tl.minimum(tl.load(min_p_ptr + row).to(tl.float64), 1.0)
    inverse = inverse_temperature(temperature)
    is_truncated = ((top_k > 0) & (top_k < size)) | (top_p < 1) | (min_p > 0)
    is_greedy = temperature <= 0
    if offset_ptr is not None:
        offset_ptr += row

    chunks = (size + CHUNK - 1) // CHUNK
    chunk = tl.arange(0, CHUNKS)
    maxima = tl.load(maxima_ptr + row * chunks_stride + chunk, mask=chunk < chunks, other=float("-inf"))
    token = tl.full([], -1, tl.int32)
    if status == 0:
        sums = tl.load(sums_ptr + row * chunks_stride + chunk, mask=chunk < chunks, other=0.0)
        leaders = tl.exp((maxima - top) * inverse)  # the weights of the largest logits of chunks
        masses = leaders * sums
        if is_truncated & ~is_greedy:
            token = truncated_draw(
                logits_ptr,
                masks,
                row,
                size,
                chance_ptr + row,
                offset_ptr,
                inverse,
                temperature,
                top_k,
                top_p,
                min_p,
                maxima_ptr + row * chunks_stride,
                maxima,
                leaders,
                masses,
                top,
                survivors_ptr + row * chunks_stride,
                columns_ptr + row * CANDIDATES,
                values_ptr + row * CANDIDATES,
                CHUNK,
                CHUNKS,
                TOKEN_STREAM,
                SHIFT,
                NONE,
                REACH,
                CANDIDATES,
                PIVOTS,
            )
        else:
            token = whole_draw(
                logits_ptr,
                masks,
                row,
                size,
                chance_ptr + row,
                offset_ptr,
                inverse,
                is_greedy,
                maxima,
                masses,
                top,
                CHUNK,
                CHUNKS,
                CHUNK_STREAM,
                TOKEN_STREAM,
            )
    logit = tl.load(logits_ptr + tl.maximum(token, 0)).to(tl.float32)
    store_outcome(
        row,
        token,
        logit,
        status,
        log_z,
        log_mass,
        top,
        kept_sum,
        tokens_ptr,
        log_p_ptr,
        log_z_ptr,
        log_mass_ptr,
        status_ptr,
    )
