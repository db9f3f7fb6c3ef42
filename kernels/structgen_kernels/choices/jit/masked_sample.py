"""The kernel of ``structgen_kernels.choices.masked_sample``."""

import triton
import triton.language as tl

from structgen_kernels.choices.jit.chunk_summary import inverse_temperature, row_outcome, store_outcome
from structgen_kernels.choices.jit.masked_argmax import chunk_logits
from structgen_kernels.choices.jit.order_keys import from_above, key_value, narrowed, order_key, pivots_between
from structgen_kernels.jit.noise import exponential, random_words


@triton.jit
def _arrival(seed, offset, index, STREAM: tl.constexpr):
    high, low, _, _ = random_words(seed, offset, index, STREAM)
    return exponential(high, low)


@triton.jit
def _count_bound(keys, goal, high, NONE: tl.constexpr, GRAIN: tl.constexpr):
    """Return a key, int64, that ``goal`` chunks reach, so as many tokens or more; ``NONE`` where chunks are fewer.

    It is less than ``GRAIN`` below the largest such key: more steps would hardly leave fewer candidates.
    """
    low = tl.min(tl.where(keys > NONE, keys, high), 0)  # that all chunks reach which hold anything
    bound = tl.full([], NONE, tl.int64)
    if tl.sum((keys > NONE).to(tl.int32), 0) >= goal:
        while high - low >= GRAIN:
            middle = low + (high - low + 1) // 2
            is_met = tl.sum((keys >= middle).to(tl.int32), 0) >= goal
            low, high = tl.where(is_met, middle, low), tl.where(is_met, high, middle - 1)
        bound = low
    return bound


@triton.jit
def _mass_bound(maxima, leaders, masses, top, inverse, goal, CHUNK: tl.constexpr):
    """Return a logit, float32, down to which tokens have a mass of ``goal`` together; minus infinity if unknown.

    Of a chunk whose maximum is at least ``bound``, that is its maximum alone or more, and its mass but for at most
    ``CHUNK - 1`` tokens that weigh less than ``bound``, or more.  Bounds that are tried are apart by 24 temperatures
    over 1,024, and reach to where all that is left of 131,072 tokens is less than the goal is rounded up by.
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
def _survivors(
    logits_ptr,  # of this row
    dense_ptr,
    dense_stride,
    dense_rows,
    sparse_ptr,
    codes_ptr,  # of this row
    size,
    survivors_ptr,  # int32 [chunks], of this row
    start,
    count,
    N: tl.constexpr,
    CODES: tl.constexpr,
    SPARSE_WORDS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Return columns and logits [N * CHUNK] of the surviving chunks from ``start`` on, as ``chunk_logits`` does."""
    held = start + tl.arange(0, N)
    chunk = tl.load(survivors_ptr + held, mask=held < count, other=(size + CHUNK - 1) // CHUNK)
    return chunk_logits(
        logits_ptr,
        dense_ptr,
        dense_stride,
        dense_rows,
        sparse_ptr,
        codes_ptr,
        size,
        chunk,
        N,
        CODES,
        SPARSE_WORDS,
        CHUNK,
    )


@triton.jit
def _gathered(
    logits_ptr,  # of this row
    dense_ptr,
    dense_stride,
    dense_rows,
    sparse_ptr,
    codes_ptr,  # of this row
    size,
    survivors_ptr,  # int32 [chunks], of this row
    count,
    bound,
    columns_ptr,  # int32 [CANDIDATES], of this row
    values_ptr,  # float32 [CANDIDATES], of this row
    CODES: tl.constexpr,
    SPARSE_WORDS: tl.constexpr,
    CHUNK: tl.constexpr,
    SHIFT: tl.constexpr,
    REACH: tl.constexpr,
    CANDIDATES: tl.constexpr,
):
    """Store the candidates, allowed columns whose key is at least ``bound``, in ascending order, and count them.

    Where there are more than fit, it ends with the tile in which that shows.
    """
    found = tl.full([], 0, tl.int32)
    start = tl.full([], 0, tl.int32)
    tl.debug_barrier()  # what was stored before is not stored after what is stored now
    while (start < count) & (found <= CANDIDATES):
        column, logits = _survivors(
            logits_ptr,
            dense_ptr,
            dense_stride,
            dense_rows,
            sparse_ptr,
            codes_ptr,
            size,
            survivors_ptr,
            start,
            count,
            REACH,
            CODES,
            SPARSE_WORDS,
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
    tl.debug_barrier()  # what one thread has stored others load
    return found


@triton.jit
def _tile(
    logits_ptr,  # of this row
    dense_ptr,
    dense_stride,
    dense_rows,
    sparse_ptr,
    codes_ptr,  # of this row
    size,
    survivors_ptr,  # int32 [chunks], of this row
    start,
    count,
    columns_ptr,  # int32 [CANDIDATES], of this row
    values_ptr,  # float32 [CANDIDATES], of this row
    found,  # how many candidates there are
    CODES: tl.constexpr,
    SPARSE_WORDS: tl.constexpr,
    CHUNK: tl.constexpr,
    CANDIDATES: tl.constexpr,
):
    """Return columns and logits [CANDIDATES]: all candidates where they fit, else chunks from ``start`` on."""
    if found <= CANDIDATES:
        place = tl.arange(0, CANDIDATES)
        column = tl.load(columns_ptr + place, mask=place < found, other=0)
        logits = tl.load(values_ptr + place, mask=place < found, other=float("-inf"))
    else:
        column, logits = _survivors(
            logits_ptr,
            dense_ptr,
            dense_stride,
            dense_rows,
            sparse_ptr,
            codes_ptr,
            size,
            survivors_ptr,
            start,
            count,
            CANDIDATES // CHUNK,
            CODES,
            SPARSE_WORDS,
            CHUNK,
        )
    return column, logits


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
    columns_ptr,  # int32 [CANDIDATES], of this row
    values_ptr,  # float32 [CANDIDATES], of this row
    CODES: tl.constexpr,
    SPARSE_WORDS: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    TOKEN_STREAM: tl.constexpr,
    SHIFT: tl.constexpr,
    NONE: tl.constexpr,
    REACH: tl.constexpr,
    CANDIDATES: tl.constexpr,
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
        bound = _count_bound(leading, top_k, highest, NONE, 1 << (16 - SHIFT))
    else:
        least = top.to(tl.float64) + floor
        least = (least - 1e-5 * tl.abs(least)).to(tl.float32)
        if has_p:  # more than is asked for, so that rounding does not make the bound too high
            goal = ((top_p + 1e-5) * total).to(tl.float32)
            least = tl.maximum(least, _mass_bound(maxima, leaders, masses, top, inverse, goal, CHUNK))
        bound = tl.maximum(order_key(least, SHIFT).to(tl.int64), bound)

    # The chunks that matter, in ascending order.
    chunk = tl.arange(0, CHUNKS)
    survives = (maxima > float("-inf")) & (leading >= bound)
    place = tl.cumsum(survives.to(tl.int32), 0) - 1
    tl.store(survivors_ptr + place, chunk, mask=survives)
    count = tl.sum(survives.to(tl.int32), 0)
    tl.debug_barrier()  # what one thread has stored others load

    # The last kept key: by count among all tokens, then by mass among those that are left.  As soon as the keys from
    # the lower end of the interval on may be few enough, they are gathered, and nothing else is read from then on.
    last = bound
    ties = tl.full([], most, tl.int32)
    found = tl.full([], most, tl.int32)
    fewest = count  # at least so many keys are in the interval or above: each chunk that survives has one
    for by_mass in range(2):
        if (by_mass == 0) & has_k | (by_mass == 1) & has_p:
            low = last
            high = highest
            goal_count = tl.where(by_mass == 0, top_k, 0)
            goal_mass = tl.where(by_mass == 0, 0.0, top_p * total)
            above_count = tl.full([], 0, tl.int32)  # of keys above the interval
            above_mass = tl.full([], 0.0, tl.float64)
            inside = tl.full([], most, tl.int32)  # keys in the interval, where they are counted
            while (low < high) & (inside > 1):
                if (found > CANDIDATES) & (fewest <= CANDIDATES):
                    found = _gathered(
                        logits_ptr,
                        dense_ptr,
                        dense_stride,
                        dense_rows,
                        sparse_ptr,
                        codes_ptr,
                        size,
                        survivors_ptr,
                        count,
                        low,
                        columns_ptr,
                        values_ptr,
                        CODES,
                        SPARSE_WORDS,
                        CHUNK,
                        SHIFT,
                        REACH,
                        CANDIDATES,
                    )
                    fewest = tl.where(found > CANDIDATES, most, found)
                pivots = pivots_between(low, high, PIVOTS)
                counts = tl.zeros([PIVOTS], tl.int32)
                sums = tl.zeros([PIVOTS], tl.float64)
                for start in range(0, tl.where(found > CANDIDATES, count, 1), CANDIDATES // CHUNK):
                    column, logits = _tile(
                        logits_ptr,
                        dense_ptr,
                        dense_stride,
                        dense_rows,
                        sparse_ptr,
                        codes_ptr,
                        size,
                        survivors_ptr,
                        start,
                        count,
                        columns_ptr,
                        values_ptr,
                        found,
                        CODES,
                        SPARSE_WORDS,
                        CHUNK,
                        CANDIDATES,
                    )
                    weights = tl.exp((logits - top) * inverse)
                    more_counts, more_sums = from_above(order_key(logits, SHIFT), weights, pivots)
                    counts += more_counts
                    sums += more_sums.to(tl.float64)
                passed = tl.sum(((counts >= goal_count) & (sums >= goal_mass)).to(tl.int32), 0)
                is_next = tl.arange(0, PIVOTS) == passed
                above_count = tl.where(passed == PIVOTS, above_count, tl.sum(tl.where(is_next, counts, 0), 0))
                above_mass = tl.where(passed == PIVOTS, above_mass, tl.sum(tl.where(is_next, sums, 0.0), 0))
                reached = tl.sum(tl.where(tl.arange(0, PIVOTS) == passed - 1, counts, 0), 0)
                fewest = tl.where(passed > 0, reached, fewest)
                inside = tl.where((passed > 0) | (inside < most), fewest - above_count, most)
                low, high = narrowed(low, high, passed, PIVOTS)
            if low < high:  # one key is inside
                only = low.to(tl.int32)
                for start in range(0, tl.where(found > CANDIDATES, count, 1), CANDIDATES // CHUNK):
                    column, logits = _tile(
                        logits_ptr,
                        dense_ptr,
                        dense_stride,
                        dense_rows,
                        sparse_ptr,
                        codes_ptr,
                        size,
                        survivors_ptr,
                        start,
                        count,
                        columns_ptr,
                        values_ptr,
                        found,
                        CODES,
                        SPARSE_WORDS,
                        CHUNK,
                        CANDIDATES,
                    )
                    keys = order_key(logits, SHIFT)
                    only = tl.maximum(only, tl.max(tl.where(keys <= high, keys, NONE), 0))
                low = only.to(tl.int64)
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
        for start in range(0, tl.where(found > CANDIDATES, count, 1), CANDIDATES // CHUNK):
            column, logits = _tile(
                logits_ptr,
                dense_ptr,
                dense_stride,
                dense_rows,
                sparse_ptr,
                codes_ptr,
                size,
                survivors_ptr,
                start,
                count,
                columns_ptr,
                values_ptr,
                found,
                CODES,
                SPARSE_WORDS,
                CHUNK,
                CANDIDATES,
            )
            keys = order_key(logits, SHIFT)
            is_tie = (keys == last).to(tl.int32)
            rank = seen + tl.cumsum(is_tie, 0) - is_tie
            seen += tl.sum(is_tie, 0)
            kept = ((keys > last) | ((keys == last) & (rank < ties))) & (logits.to(tl.float64) - top >= floor)
            weights = tl.where(kept, tl.exp((logits - top) * inverse), 0.0)
            if offset_ptr is None:
                passing, latest = _first_above(weights, column, target, running, end)
                token = tl.minimum(token, passing)  # later tiles hold higher ids
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
    columns_ptr,  # int32 [rows, CANDIDATES]
    values_ptr,  # float32 [rows, CANDIDATES]
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
    REACH: tl.constexpr,  # chunks that are gathered from together
    CANDIDATES: tl.constexpr,  # how many fit
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
                columns_ptr + row * CANDIDATES,
                values_ptr + row * CANDIDATES,
                CODES,
                SPARSE_WORDS,
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
