"""The chunks that may contain kept tokens, and their logits: see ``structgen_kernels.choices.masked_sample``."""

import triton
import triton.language as tl

from structgen_kernels.choices.jit.masked_argmax import chunk_logits
from structgen_kernels.choices.jit.order_keys import order_key


@triton.jit
def count_bound(keys, goal, high, NONE: tl.constexpr, GRAIN: tl.constexpr):
    """Return a key, int64, that the maxima of ``goal`` chunks reach, and so at least ``goal`` tokens.

    The key is less than ``GRAIN`` below the largest such key; more steps would hardly leave fewer candidates.  ``NONE``
    if there are fewer chunks.
    """
    low = tl.min(tl.where(keys > NONE, keys, high), 0)  # every chunk with an allowed token reaches this key
    bound = tl.full([], NONE, tl.int64)
    if tl.sum((keys > NONE).to(tl.int32), 0) >= goal:
        while high - low >= GRAIN:
            middle = low + (high - low + 1) // 2
            is_met = tl.sum((keys >= middle).to(tl.int32), 0) >= goal
            low, high = tl.where(is_met, middle, low), tl.where(is_met, high, middle - 1)
        bound = low
    return bound


@triton.jit
def mass_bound(maxima, leaders, masses, top, inverse, goal, CHUNK: tl.constexpr):
    """Return a logit, float32, such that tokens from it up have a total mass of ``goal``; minus infinity if unknown.

    In a chunk whose maximum is at least ``bound``, the tokens from ``bound`` up have at least the weight of the
    maximum, and at least the mass of the chunk less that of ``CHUNK - 1`` tokens at ``bound``.  The search tries bounds
    in steps of 24 / 1,024 temperatures.  Below its range, 131,072 tokens have less mass than ``goal`` is rounded up by.
    """
    low = tl.full([], 0, tl.int32)
    high = tl.full([], 1024, tl.int32)
    while low < high:
        middle = (low + high) // 2
        bound = top - middle.to(tl.float32) * 0.0234375 / inverse
        lighter = tl.exp((bound - top) * inverse) * (CHUNK - 1)
        reached = tl.where(maxima >= bound, tl.maximum(leaders, masses - lighter), 0.0)
        is_met = tl.sum(reached, 0) >= goal
        low, high = tl.where(is_met, low, middle + 1), tl.where(is_met, middle, high)
    return tl.where(low < 1024, top - low.to(tl.float32) * 0.0234375 / inverse, float("-inf"))


@triton.jit
def list_survivors(maxima_ptr, chunks, bound, survivors_ptr, CHUNKS: tl.constexpr, SHIFT: tl.constexpr):
    """Store the chunks whose largest allowed logit reaches ``bound``, in ascending order, and return their count.

    The maxima are loaded again: they would occupy registers in the whole search.
    """
    chunk = tl.arange(0, CHUNKS)
    maxima = tl.load(maxima_ptr + chunk, mask=chunk < chunks, other=float("-inf"))
    survives = (maxima > float("-inf")) & (order_key(maxima, SHIFT) >= bound)
    place = tl.cumsum(survives.to(tl.int32), 0) - 1
    tl.debug_barrier()  # earlier loads must not follow the stores
    tl.store(survivors_ptr + place, chunk, mask=survives)
    tl.debug_barrier()  # other threads load the stored values
    return tl.sum(survives.to(tl.int32), 0)


@triton.jit
def _survivors(
    logits_ptr,  # of this row
    masks,
    row,  # int64
    size,
    survivors_ptr,  # int32 [chunks], of this row
    start,
    count,
    N: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Return columns and logits [N * CHUNK] of the surviving chunks from ``start`` on: see ``chunk_logits``."""
    held = start + tl.arange(0, N)
    chunk = tl.load(survivors_ptr + held, mask=held < count, other=(size + CHUNK - 1) // CHUNK)
    return chunk_logits(
        logits_ptr,
        masks,
        row,
        size,
        chunk,
        N,
        CHUNK,
    )


@triton.jit
def gathered(
    logits_ptr,  # of this row
    masks,
    row,  # int64
    size,
    survivors_ptr,  # int32 [chunks], of this row
    count,
    bound,
    columns_ptr,  # int32 [CANDIDATES], of this row
    values_ptr,  # float32 [CANDIDATES], of this row
    CHUNK: tl.constexpr,
    SHIFT: tl.constexpr,
    REACH: tl.constexpr,
    CANDIDATES: tl.constexpr,
):
    """Store the candidates, allowed columns with a key of at least ``bound``, in ascending order; return their count.

    If there are more than ``CANDIDATES``, the loop stops at the tile that exceeds the limit.
    """
    found = tl.full([], 0, tl.int32)
    start = tl.full([], 0, tl.int32)
    tl.debug_barrier()  # earlier stores must not follow those below
    while (start < count) & (found <= CANDIDATES):
        column, logits = _survivors(
            logits_ptr,
            masks,
            row,
            size,
            survivors_ptr,
            start,
            count,
            REACH,
            CHUNK,
        )
        is_candidate = (order_key(logits, SHIFT) >= bound) & (logits > float("-inf"))
        ahead = tl.cumsum(is_candidate.to(tl.int32), 0)
        place = found + ahead - 1
        fits = is_candidate & (place < CANDIDATES)
        tl.store(columns_ptr + place, column, mask=fits)
        tl.store(values_ptr + place, logits, mask=fits)
        found += tl.max(ahead, 0)
        start += REACH
    tl.debug_barrier()  # other threads load the stored values
    return found


@triton.jit
def tile(
    logits_ptr,  # of this row
    masks,
    row,  # int64
    size,
    survivors_ptr,  # int32 [chunks], of this row
    start,
    count,
    columns_ptr,  # int32 [CANDIDATES], of this row
    values_ptr,  # float32 [CANDIDATES], of this row
    found,  # the number of candidates
    CHUNK: tl.constexpr,
    CANDIDATES: tl.constexpr,
):
    """Return columns and logits [CANDIDATES]: all candidates if they fit, else chunks from ``start`` on."""
    if found <= CANDIDATES:
        place = tl.arange(0, CANDIDATES)
        column = tl.load(columns_ptr + place, mask=place < found, other=0)
        logits = tl.load(values_ptr + place, mask=place < found, other=float("-inf"))
    else:
        column, logits = _survivors(
            logits_ptr,
            masks,
            row,
            size,
            survivors_ptr,
            start,
            count,
            CANDIDATES // CHUNK,
            CHUNK,
        )
    return column, logits
