"""Samples from weights, by exponential races or by inverse transform sampling."""

import triton
import triton.language as tl

from structgen_kernels.choices.jit.masked_argmax import chunk_logits
from structgen_kernels.jit.noise import exponential, random_words


@triton.jit
def arrival(seed, offset, index, STREAM: tl.constexpr):
    """Return standard exponential variates [N]: the arrival times of entries with weight 1 in a race."""
    high, low, _, _ = random_words(seed, offset, index, STREAM)
    return exponential(high, low)


@triton.jit
def first_above(weights, place, target, before, END: tl.constexpr):
    """Return the place where the cumulative sum of weights [N] passes a target, and the last place with a weight.

    Sums are float64 and start from ``before``.  The first result is ``END`` if no sum passes the target; the second is
    -1 if all weights are zero.
    """
    passes = (before + tl.cumsum(weights.to(tl.float64), 0) > target) & (weights > 0)
    return tl.min(tl.where(passes, place, END), 0), tl.max(tl.where(weights > 0, place, -1), 0)


@triton.jit
def whole_draw(
    logits_ptr,  # of this row
    masks,
    row,  # int64
    size,
    chance_ptr,  # of this row
    offset_ptr,
    inverse,
    is_greedy,
    maxima,  # float32 [CHUNKS]
    masses,  # float32 [CHUNKS]
    top,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    CHUNK_STREAM: tl.constexpr,
    TOKEN_STREAM: tl.constexpr,
):
    """Sample a token, int32, without truncation: first a chunk, then a token of that chunk."""
    end: tl.constexpr = 2**31 - 1
    chunk = tl.arange(0, CHUNKS)
    target = tl.full([], 0.0, tl.float64)
    if is_greedy:
        best = tl.min(tl.where(maxima == top, chunk, end), 0)
    elif offset_ptr is None:
        exact = masses.to(tl.float64)
        goal = tl.load(chance_ptr) * tl.sum(exact, 0)
        found, last = first_above(masses, chunk, goal, 0.0, end)
        best = tl.where(found == end, last, found)
        before = tl.sum(tl.where(chunk < best, exact, 0.0), 0)
        target = (goal - before) / tl.sum(tl.where(chunk == best, exact, 0.0), 0)
    else:
        scores = masses / arrival(tl.load(chance_ptr), tl.load(offset_ptr), chunk, CHUNK_STREAM)
        best = tl.min(tl.where((scores == tl.max(scores, 0)) & (masses > 0), chunk, end), 0)
    column, logits = chunk_logits(
        logits_ptr,
        masks,
        row,
        size,
        best + tl.arange(0, 1),
        1,
        CHUNK,
    )
    largest = tl.max(logits, 0)
    weights = tl.exp((logits - largest) * inverse)
    if is_greedy:
        token = tl.min(tl.where(logits == largest, column, end), 0)
    elif offset_ptr is None:
        target = target * tl.sum(weights.to(tl.float64), 0)
        found, last = first_above(weights, column, target, 0.0, end)
        token = tl.where(found == end, last, found)
    else:
        scores = weights / arrival(tl.load(chance_ptr), tl.load(offset_ptr), column, TOKEN_STREAM)
        token = tl.min(tl.where((scores == tl.max(scores, 0)) & (weights > 0), column, end), 0)
    return token
