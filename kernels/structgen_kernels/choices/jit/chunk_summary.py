"""The kernel of ``structgen_kernels.choices.chunk_summary``, and functions of kernels that read the summary."""

import triton
import triton.language as tl

from structgen_kernels.masks.jit.mask_words import allowed_bytes, allowed_words


@triton.jit
def _finite(value):
    """Return the base of exponents: the value, or 0 for minus infinity, where all terms are zero."""
    return tl.where(value == float("-inf"), 0.0, value)


@triton.jit
def inverse_temperature(temperature):
    """Return the inverse, float32, at most 1e30, so that zero times the inverse is zero; 1 for a greedy choice."""
    value = tl.where(temperature > 0, temperature, 1.0).to(tl.float32)
    return 1.0 / tl.maximum(value, 1e-30)


@triton.jit
def chunk_summary_kernel(
    logits_ptr,  # [rows, columns]
    logits_stride,
    masks,  # MaskArgs
    size,
    temperature_ptr,  # [rows], or None
    maxima_ptr,  # float32 [rows, chunks]
    sums_ptr,  # float32 [rows, chunks], not written without a temperature
    chunks_stride,
    splits_ptr,  # float32 [rows, 5, splits]
    splits_stride,
    fields_stride,
    CHUNK: tl.constexpr,
    SPLIT: tl.constexpr,  # columns per program
):
    """One program per row and split.  Each logit is read once and takes one exponential, or two if T is not 1.

    A thread holds groups of 8 columns, one byte of the mask, and sums them up alone.  Threads exchange only the numbers
    of groups.  NaN and plus infinity need no test per logit: they make a sum NaN, whether they are allowed or not.
    """
    chunks: tl.constexpr = SPLIT // CHUNK
    chunk_groups: tl.constexpr = CHUNK // 8
    split_words: tl.constexpr = SPLIT // 32
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    words = allowed_words(
        masks,
        row,
        size,
        split * split_words + tl.arange(0, split_words),
    )
    allowed = (allowed_bytes(words, split_words)[:, None] & (1 << tl.arange(0, 8))[None, :]) != 0
    column = tl.arange(0, SPLIT // 8)[:, None] * 8 + tl.arange(0, 8)[None, :]  # within the split
    place = logits_ptr + row * logits_stride + split.to(tl.int64) * SPLIT + column
    if (split + 1) * SPLIT <= size:  # without a mask, which would prevent vectorized loads for odd sizes
        logits = tl.load(place).to(tl.float32)
    else:
        logits = tl.load(place, mask=column < size - split * SPLIT, other=float("-inf")).to(tl.float32)

    kept_most = tl.max(tl.where(allowed, logits, float("-inf")), 1)  # [SPLIT // 8]
    rest_most = tl.max(tl.where(allowed, float("-inf"), logits), 1)
    base = tl.where(allowed, _finite(kept_most)[:, None], _finite(rest_most)[:, None])
    share = tl.where(allowed, 1.0, 0.0)  # for multiply-adds, which other units do than selects
    terms = tl.exp(logits - base)
    kept = tl.reshape(tl.sum(terms * share, 1), [chunks, chunk_groups])
    rest_parts = tl.sum(terms * (1 - share), 1)
    most = tl.reshape(kept_most, [chunks, chunk_groups])
    kept_max = tl.max(most, 1)  # [chunks]
    above = most - _finite(kept_max)[:, None]
    kept_sum = tl.sum(kept * tl.exp(above), 1)

    chunk = split * chunks + tl.arange(0, chunks)
    is_chunk = chunk < (size + CHUNK - 1) // CHUNK
    tl.store(maxima_ptr + row * chunks_stride + chunk, kept_max, mask=is_chunk)
    if temperature_ptr is not None:
        inverse = inverse_temperature(tl.load(temperature_ptr + row))
        sums = kept_sum
        if inverse != 1.0:
            terms = tl.exp((logits - base) * inverse)
            kept = tl.reshape(tl.sum(terms * share, 1), [chunks, chunk_groups])
            sums = tl.sum(kept * tl.exp(above * inverse), 1)
        tl.store(sums_ptr + row * chunks_stride + chunk, sums, mask=is_chunk)

    kept_top = tl.max(kept_max, 0)
    rest_top = tl.max(rest_most, 0)
    out = splits_ptr + row * splits_stride + split
    tl.store(out, kept_top)
    tl.store(out + fields_stride, tl.sum(kept_sum * tl.exp(kept_max - _finite(kept_top)), 0))
    tl.store(out + 2 * fields_stride, rest_top)
    tl.store(out + 3 * fields_stride, tl.sum(rest_parts * tl.exp(rest_most - _finite(rest_top)), 0))
    tl.store(out + 4 * fields_stride, tl.sum((words != 0).to(tl.float32), 0))


@triton.jit
def _log_sum(splits_ptr, fields_stride, split, live):
    """Return the largest logit, and the sum of exponentials relative to it, over all splits."""
    largest = tl.load(splits_ptr + split, mask=live, other=float("-inf"))
    sums = tl.load(splits_ptr + fields_stride + split, mask=live, other=0.0)
    top = tl.max(largest, 0)
    return top, tl.sum(sums * tl.exp(largest - _finite(top)), 0)


@triton.jit
def row_outcome(splits_ptr, fields_stride, splits, SPLITS: tl.constexpr):
    """Return the status, ``log_z``, ``log_mass``, and the largest allowed logit and sum of one row."""
    split = tl.arange(0, SPLITS)
    live = split < splits
    kept_top, kept_sum = _log_sum(splits_ptr, fields_stride, split, live)
    rest_top, rest_sum = _log_sum(splits_ptr + 2 * fields_stride, fields_stride, split, live)
    words = tl.sum(tl.load(splits_ptr + 4 * fields_stride + split, mask=live, other=0.0), 0)
    is_finite = (kept_sum + rest_sum == kept_sum + rest_sum) & (kept_top < float("inf")) & (rest_top < float("inf"))
    status = tl.where(is_finite, tl.where(words == 0, 1, tl.where(kept_sum > 0, 0, 2)), 3)
    # log(1 + y) for the ratio y of the smaller to the larger mass, without loss of precision for small y.
    has_kept = kept_sum > 0
    has_rest = rest_sum > 0
    kept_log = tl.where(has_kept, _finite(kept_top) + tl.log(tl.where(has_kept, kept_sum, 1.0)), float("-inf"))
    rest_log = tl.where(has_rest, _finite(rest_top) + tl.log(tl.where(has_rest, rest_sum, 1.0)), float("-inf"))
    larger = tl.maximum(kept_log, rest_log)
    smaller = tl.minimum(kept_log, rest_log)
    share = tl.exp(smaller - _finite(larger))
    growth = tl.where(share < 0.002, share * (1 - share * (0.5 - share / 3)), tl.log(1 + share))
    log_mass = tl.where(is_finite, larger + growth, float("-inf"))
    log_z = tl.where(rest_log > kept_log, kept_log - _finite(rest_log) - growth, -growth)
    return status, tl.where(status == 0, log_z, float("-inf")), log_mass, kept_top, kept_sum


@triton.jit
def store_outcome(
    row,
    token,  # int32
    logit,  # float32, of the token
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
):
    """Store the result of one row."""
    is_chosen = status == 0
    log_p = logit - _finite(kept_top) - tl.log(tl.where(is_chosen, kept_sum, 1.0))
    tl.store(tokens_ptr + row, tl.where(is_chosen, token, -1))
    tl.store(log_p_ptr + row, tl.where(is_chosen, log_p, float("-inf")))
    tl.store(log_z_ptr + row, log_z)
    tl.store(log_mass_ptr + row, log_mass)
    tl.store(status_ptr + row, status)
