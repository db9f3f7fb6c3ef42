"""The kernel of ``structgen_kernels.masked_sample``."""

import triton
import triton.language as tl

from structgen_kernels.jit.chunk_summary import inverse_temperature, row_outcome, store_outcome
from structgen_kernels.jit.masked_argmax import chunk_logits
from structgen_kernels.jit.noise import exponential, random_words
from structgen_kernels.jit.order_keys import from_above, key_value, narrowed, order_key, pivots_between


@triton.jit
def _arrival(seed, offset, index, STREAM: tl.constexpr):
    high, low, _, _ = random_words(seed, offset, index, STREAM)
    return exponential(high, low)


@triton.jit
def _chunk_bound(keys, amounts, goal, low, high):
    """Return the largest key, int64 from ``low`` to ``high``, down to which chunks have an amount of ``goal`` together.

    Tokens with at least that key are as many as these chunks, or more, and weigh as much as their maxima, or more.
    """
    while low < high:
        middle = low + (high - low + 1) // 2
        is_met = tl.sum(tl.where(keys >= middle, amounts, 0.0), 0) >= goal
        low, high = tl.where(is_met, middle, low), tl.where(is_met, high, middle - 1)
    return low


@triton.jit
def _first_above(weights, place, target, before, END: tl.constexpr):
    """Return where the running sum of weights [N] passes a target, and the last place with a weight.

    Sums are float64 and start from ``before``; the first is ``END`` where they do not pass, the last is -1 where all
    weights are zero.
    """
    passes = (before + tl.cumsum(weights.to(tl.float64), 0) > target) & (weights > 0)
    return tl.min(tl.where(passes, place, END), 0), tl.max(tl.where(weights > 0, place, -1), 0)


@triton.jit
def _whole_draw(
    logits_ptr,  # of this row
    dense_ptr,
    dense_stride,
    dense_rows,
    sparse_ptr,
    codes_ptr,  # of this row
    size,
    chance_ptr,  # of this row
    offset_ptr,
    inverse,
    is_greedy,
    maxima,  # float32 [CHUNKS]
    masses,  # float32 [CHUNKS]
    top,
    CODES: tl.constexpr,
    SPARSE_WORDS: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    CHUNK_STREAM: tl.constexpr,
    TOKEN_STREAM: tl.constexpr,
):
    """Return a token, int32, where nothing is truncated: first its chunk, then one of that chunk."""
    end: tl.constexpr = 2**31 - 1
    chunk = tl.arange(0, CHUNKS)
    target = tl.full([], 0.0, tl.float64)
    if is_greedy:
        best = tl.min(tl.where(maxima == top, chunk, end), 0)
    elif offset_ptr is None:
        exact = masses.to(tl.float64)
        goal = tl.load(chance_ptr) * tl.sum(exact, 0)
        found, last = _first_above(masses, chunk, goal, 0.0, end)
        best = tl.where(found == end, last, found)
        before = tl.sum(tl.where(chunk < best, exact, 0.0), 0)
        target = (goal - before) / tl.sum(tl.where(chunk == best, exact, 0.0), 0)
    else:
        scores = masses / _arrival(tl.load(chance_ptr), tl.load(offset_ptr), chunk, CHUNK_STREAM)
        best = tl.min(tl.where((scores == tl.max(scores, 0)) & (masses > 0), chunk, end), 0)
    column, logits = chunk_logits(
        logits_ptr,
        dense_ptr,
        dense_stride,
        dense_rows,
        sparse_ptr,
        codes_ptr,
        size,
        best + tl.arange(0, 1),
        1,
        CODES,
        SPARSE_WORDS,
        CHUNK,
    )
    largest = tl.max(logits, 0)
    weights = tl.exp((logits - largest) * inverse)
    if is_greedy:
        token = tl.min(tl.where(logits == largest, column, end), 0)
    elif offset_ptr is None:
        target = target * tl.sum(weights.to(tl.float64), 0)
        found, last = _first_above(weights, column, target, 0.0, end)
        token = tl.where(found == end, last, found)
    else:
        scores = weights / _arrival(tl.load(chance_ptr), tl.load(offset_ptr), column, TOKEN_STREAM)
        token = tl.min(tl.where((scores == tl.max(scores, 0)) & (weights > 0), column, end), 0)
    return token


@triton.jit
def _truncated_draw(
    logits_ptr,  # of this row
    dense_ptr,
    dense_stride,
    dense_rows,
    sparse_ptr,
    codes_ptr,  # of this row
    size,
    chance_ptr,  # of this row
    offset_ptr,
    inverse,
    temperature,
    top_k,
    top_p,
    min_p,
    maxima,  # float32 [CHUNKS]
    leaders,  # float32 [CHUNKS], weights of the maxima
    masses,  # float32 [CHUNKS]
    top,
    survivors_ptr,  # int32 [chunks], of this row
    CODES: tl.constexpr,
    SPARSE_WORDS: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    TOKEN_STREAM: tl.constexpr,
    SHIFT: tl.constexpr,
    NONE: tl.constexpr,
    TILE: tl.constexpr,
    PIVOTS: tl.constexpr,
):
    """Return a token, int32, of the kept ones: keys above ``last``, and the first ``ties`` columns with that key."""
    end: tl.constexpr = 2**31 - 1
    most: tl.constexpr = 2**30
    has_k = (top_k > 0) & (top_k < size)
    has_p = top_p < 1
    total = tl.sum(masses.to(tl.float64), 0)
    # Kept are logits of at least top + floor; min_p of 0 makes that minus infinity.
    floor = tl.where(min_p > 0, temperature * tl.log(tl.where(min_p > 0, min_p, 1.0)), float("-inf"))
    bound = tl.full([], NONE, tl.int64)
    leading = order_key(maxima, SHIFT)
    highest = order_key(top, SHIFT).to(tl.int64)
    if has_k:
        bound = _chunk_bound(leading, tl.full([CHUNKS], 1.0, tl.float32), top_k.to(tl.float32), bound, highest)
    elif has_p:  # more than is asked for, so that rounding does not make the bound too high
        bound = _chunk_bound(leading, leaders, (top_p * total * 1.00001).to(tl.float32), bound, highest)
    if ~has_k:
        least = top.to(tl.float64) + floor
        least = (least - 1e-5 * tl.abs(least)).to(tl.float32)
        bound = tl.maximum(bound, order_key(least, SHIFT).to(tl.int64))

    # The chunks that matter, in ascending order.
    chunk = tl.arange(0, CHUNKS)
    survives = (maxima > float("-inf")) & (leading >= bound)
    place = tl.cumsum(survives.to(tl.int32), 0) - 1
    tl.store(survivors_ptr + place, chunk, mask=survives)
    count = tl.sum(survives.to(tl.int32), 0)
    tl.debug_barrier()  # what one thread has stored others load

    # The last kept key: by count among all tokens, then by mass among those that are left.
    last = bound
    ties = tl.full([], most, tl.int32)
    for by_mass in range(2):
        if (by_mass == 0) & has_k | (by_mass == 1) & has_p:
            low = last
            high = highest
            goal_count = tl.where(by_mass == 0, top_k, 0)
            goal_mass = tl.where(by_mass == 0, 0.0, top_p * total)
            above_count = tl.full([], 0, tl.int32)  # of keys above the interval
            above_mass = tl.full([], 0.0, tl.float64)
            while low < high:
                pivots = pivots_between(low, high, PIVOTS)
                counts = tl.zeros([PIVOTS], tl.int32)
                sums = tl.zeros([PIVOTS], tl.float64)
                for start in range(0, count, TILE):
                    held = start + tl.arange(0, TILE)
                    column, logits = chunk_logits(
                        logits_ptr,
                        dense_ptr,
                        dense_stride,
                        dense_rows,
                        sparse_ptr,
                        codes_ptr,
                        size,
                        tl.load(survivors_ptr + held, mask=held < count, other=(size + CHUNK - 1) // CHUNK),
                        TILE,
                        CODES,
                        SPARSE_WORDS,
                        CHUNK,
                    )
                    weights = tl.exp((logits - top) * inverse)
                    more_counts, more_sums = from_above(order_key(logits, SHIFT), weights, pivots)
                    counts += more_counts
                    sums += more_sums.to(tl.float64)
                passed = tl.sum(((counts >= goal_count) & (sums >= goal_mass)).to(tl.int32), 0)
                is_next = tl.arange(0, PIVOTS) == passed
                above_count = tl.where(passed == PIVOTS, above_count, tl.sum(tl.where(is_next, counts, 0), 0))
                above_mass = tl.where(passed == PIVOTS, above_mass, tl.sum(tl.where(is_next, sums, 0.0), 0))
                low, high = narrowed(low, high, passed, PIVOTS)
            weight = tl.exp((key_value(low.to(tl.int32), SHIFT) - top) * inverse).to(tl.float64)
            if by_mass == 0:
                ties = top_k - above_count
                total = above_mass + ties * weight
            else:
                wanted = tl.where(
                    weight > 0, tl.ceil((goal_mass - above_mass) / tl.where(weight > 0, weight, 1.0)), 0.0
                )
                wanted = tl.maximum(tl.minimum(wanted, most), 1.0).to(tl.int32)
                ties = tl.where(low == last, tl.minimum(ties, wanted), wanted)
            last = low

    # The race, or the running sums: their total first, then the token.
    token = tl.full([], end, tl.int32)
    best = tl.full([], -1.0, tl.float32)
    final = tl.full([], -1, tl.int32)
    target = tl.full([], float("inf"), tl.float64)
    for _ in range(1 if offset_ptr is not None else 2):
        seen = tl.full([], 0, tl.int32)  # ties
        running = tl.full([], 0.0, tl.float64)
        for start in range(0, count, TILE):
            held = start + tl.arange(0, TILE)
            column, logits = chunk_logits(
                logits_ptr,
                dense_ptr,
                dense_stride,
                dense_rows,
                sparse_ptr,
                codes_ptr,
                size,
                tl.load(survivors_ptr + held, mask=held < count, other=(size + CHUNK - 1) // CHUNK),
                TILE,
                CODES,
                SPARSE_WORDS,
                CHUNK,
            )
            keys = order_key(logits, SHIFT)
            is_tie = (keys == last).to(tl.int32)
            rank = seen + tl.cumsum(is_tie, 0) - is_tie
            seen += tl.sum(is_tie, 0)
            kept = ((keys > last) | ((keys == last) & (rank < ties))) & (logits.to(tl.float64) - top >= floor)
            weights = tl.where(kept, tl.exp((logits - top) * inverse), 0.0)
            if offset_ptr is None:
                found, latest = _first_above(weights, column, target, running, end)
                token = tl.minimum(token, found)  # later tiles hold higher ids
                final = tl.maximum(final, latest)
                running += tl.sum(weights.to(tl.float64), 0)
            else:
                scores = weights / _arrival(tl.load(chance_ptr), tl.load(offset_ptr), column, TOKEN_STREAM)
                score = tl.max(scores, 0)
                first = tl.min(tl.where((scores == score) & (weights > 0), column, end), 0)
                token = tl.where(score > best, first, token)
                best = tl.maximum(best, score)
        if offset_ptr is None:
            target = tl.load(chance_ptr) * running
    return tl.where(token == end, final, token)


@triton.jit
def masked_sample_kernel(
    logits_ptr,  # [rows, columns]
    logits_stride,
    dense_ptr,
    dense_stride,
    dense_rows,
    sparse_ptr,
    codes_ptr,  # int32 [rows, CODES]
    size,
    temperature_ptr,  # [rows]
    top_k_ptr,  # int32 [rows]
    top_p_ptr,  # [rows]
    min_p_ptr,  # [rows]
    chance_ptr,  # int64 [rows], seeds, or float64 [rows], uniform numbers
    offset_ptr,  # int64 [rows], or None where the numbers are uniform
    maxima_ptr,  # float32 [rows, chunks]
    sums_ptr,  # float32 [rows, chunks]
    chunks_stride,
    splits_ptr,  # float32 [rows, 5, splits]
    splits_stride,
    fields_stride,
    survivors_ptr,  # int32 [rows, chunks]
    tokens_ptr,  # int32 [rows]
    log_p_ptr,  # float32 [rows]
    log_z_ptr,
    log_mass_ptr,
    status_ptr,  # int32 [rows]
    CODES: tl.constexpr,
    SPARSE_WORDS: tl.constexpr,
    CHUNK: tl.constexpr,
    SPLIT: tl.constexpr,
    CHUNKS: tl.constexpr,  # of a row, rounded up to a power of two
    SPLITS: tl.constexpr,
    CHUNK_STREAM: tl.constexpr,
    TOKEN_STREAM: tl.constexpr,
    SHIFT: tl.constexpr,  # see order_key
    NONE: tl.constexpr,  # the key of minus infinity
    TILE: tl.constexpr,  # chunks that are searched together
    PIVOTS: tl.constexpr,
):
    """One program a row, over the numbers of its chunks; then the chunks that matter are read again."""
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * logits_stride
    codes_ptr += row * CODES
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
            token = _truncated_draw(
                logits_ptr,
                dense_ptr,
                dense_stride,
                dense_rows,
                sparse_ptr,
                codes_ptr,
                size,
                chance_ptr + row,
                offset_ptr,
                inverse,
                temperature,
                top_k,
                top_p,
                min_p,
                maxima,
                leaders,
                masses,
                top,
                survivors_ptr + row * chunks_stride,
                CODES,
                SPARSE_WORDS,
                CHUNK,
                CHUNKS,
                TOKEN_STREAM,
                SHIFT,
                NONE,
                TILE,
                PIVOTS,
            )
        else:
            token = _whole_draw(
                logits_ptr,
                dense_ptr,
                dense_stride,
                dense_rows,
                sparse_ptr,
                codes_ptr,
                size,
                chance_ptr + row,
                offset_ptr,
                inverse,
                is_greedy,
                maxima,
                masses,
                top,
                CODES,
                SPARSE_WORDS,
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
