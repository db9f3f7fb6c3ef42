"""A sample from the tokens that top-k, top-p and min-p keep: see ``structgen_kernels.choices.masked_sample``."""

import triton
import triton.language as tl

from structgen_kernels.choices.jit.draws import arrival, first_above
from structgen_kernels.choices.jit.order_keys import from_above, key_value, narrowed, order_key
from structgen_kernels.choices.jit.survivors import count_bound, gathered, list_survivors, mass_bound, tile


@triton.jit
def truncated_draw(
    logits_ptr,  # of this row
    masks,
    row,  # int64
    size,
    chance_ptr,  # of this row
    offset_ptr,
    inverse,
    temperature,
    top_k,
    top_p,
    min_p,
    maxima_ptr,  # float32 [chunks], of this row
    maxima,  # float32 [CHUNKS]
    leaders,  # float32 [CHUNKS], weights of the maxima
    masses,  # float32 [CHUNKS]
    top,
    survivors_ptr,  # int32 [chunks], of this row
    columns_ptr,  # int32 [CANDIDATES], of this row
    values_ptr,  # float32 [CANDIDATES], of this row
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    TOKEN_STREAM: tl.constexpr,
    SHIFT: tl.constexpr,
    NONE: tl.constexpr,
    REACH: tl.constexpr,
    CANDIDATES: tl.constexpr,
    PIVOTS: tl.constexpr,
):
    """Sample a kept token, int32: one with a key above ``last``, or one of the first ``ties`` with that key."""
    end: tl.constexpr = 2**31 - 1
    most: tl.constexpr = 2**30
    chunks = (size + CHUNK - 1) // CHUNK
    has_k = (top_k > 0) & (top_k < size)
    has_p = top_p < 1
    total = tl.sum(masses.to(tl.float64), 0)
    # Logits of at least top + floor are kept; the floor is minus infinity if min_p is 0.
    floor = tl.where(min_p > 0, temperature * tl.log(tl.where(min_p > 0, min_p, 1.0)), float("-inf"))
    bound = tl.full([], NONE, tl.int64)
    highest = order_key(top, SHIFT).to(tl.int64)
    if has_k:
        bound = count_bound(order_key(maxima, SHIFT), top_k, highest, NONE, 1 << (16 - SHIFT))
    else:
        least = top.to(tl.float64) + floor
        least = (least - 1e-5 * tl.abs(least)).to(tl.float32)
        if has_p:  # a larger mass than top_p, so that rounding cannot make the bound too high
            goal = ((top_p + 1e-5) * total).to(tl.float32)
            least = tl.maximum(least, mass_bound(maxima, leaders, masses, top, inverse, goal, CHUNK))
        bound = tl.maximum(order_key(least, SHIFT).to(tl.int64), bound)

    count = list_survivors(maxima_ptr, chunks, bound, survivors_ptr, CHUNKS, SHIFT)

    # Search for the last kept key: by count among all tokens, then by mass among the remaining ones.  As soon as the
    # keys from the lower end of the interval up may fit, they are gathered, and only these are read from then on.
    last = bound
    ties = tl.full([], most, tl.int32)
    found = tl.full([], most, tl.int32)
    fewest = count  # a lower bound on the keys in or above the interval: each surviving chunk has one
    for by_mass in range(2):
        if (by_mass == 0) & has_k | (by_mass == 1) & has_p:
            low = last
            high = highest
            goal_count = tl.where(by_mass == 0, top_k, 0)
            goal_mass = tl.where(by_mass == 0, 0.0, top_p * total)
            above_count = tl.full([], 0, tl.int32)  # keys above the interval
            above_mass = tl.full([], 0.0, tl.float64)
            inside = tl.full([], most, tl.int32)  # keys in the interval, once they are counted
            while (low < high) & (inside > 1):
                if (found > CANDIDATES) & (fewest <= CANDIDATES):
                    count = list_survivors(maxima_ptr, chunks, low, survivors_ptr, CHUNKS, SHIFT)
                    found = gathered(
                        logits_ptr,
                        masks,
                        row,
                        size,
                        survivors_ptr,
                        count,
                        low,
                        columns_ptr,
                        values_ptr,
                        CHUNK,
                        SHIFT,
                        REACH,
                        CANDIDATES,
                    )
                    fewest = tl.where(found > CANDIDATES, most, found)
                part_counts = tl.zeros([CANDIDATES // 8, 2, 2], tl.int32)
                part_sums = tl.zeros([CANDIDATES // 8, 2, 2], tl.float32)
                for start in range(0, tl.where(found > CANDIDATES, count, 1), CANDIDATES // CHUNK):
                    column, logits = tile(
                        logits_ptr,
                        masks,
                        row,
                        size,
                        survivors_ptr,
                        start,
                        count,
                        columns_ptr,
                        values_ptr,
                        found,
                        CHUNK,
                        CANDIDATES,
                    )
                    weights = tl.exp((logits - top) * inverse)
                    more_counts, more_sums = from_above(order_key(logits, SHIFT), weights, low, high, CANDIDATES)
                    part_counts += more_counts
                    part_sums += more_sums
                counts = tl.reshape(tl.sum(part_counts, 0), [PIVOTS])
                sums = tl.reshape(tl.sum(part_sums.to(tl.float64), 0), [PIVOTS])
                passed = tl.sum(((counts >= goal_count) & (sums >= goal_mass)).to(tl.int32), 0)
                is_next = tl.arange(0, PIVOTS) == passed
                above_count = tl.where(passed == PIVOTS, above_count, tl.sum(tl.where(is_next, counts, 0), 0))
                above_mass = tl.where(passed == PIVOTS, above_mass, tl.sum(tl.where(is_next, sums, 0.0), 0))
                reached = tl.sum(tl.where(tl.arange(0, PIVOTS) == passed - 1, counts, 0), 0)
                fewest = tl.where(passed > 0, reached, fewest)
                inside = tl.where((passed > 0) | (inside < most), fewest - above_count, most)
                low, high = narrowed(low, high, passed, PIVOTS)
            if low < high:  # one key is left in the interval
                only = low.to(tl.int32)
                for start in range(0, tl.where(found > CANDIDATES, count, 1), CANDIDATES // CHUNK):
                    column, logits = tile(
                        logits_ptr,
                        masks,
                        row,
                        size,
                        survivors_ptr,
                        start,
                        count,
                        columns_ptr,
                        values_ptr,
                        found,
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

    # The race; or cumulative sums, first for their total, then for the token.
    token = tl.full([], end, tl.int32)
    best = tl.full([], -1.0, tl.float32)
    final = tl.full([], -1, tl.int32)
    target = tl.full([], float("inf"), tl.float64)
    for _ in range(1 if offset_ptr is not None else 2):
        seen = tl.full([], 0, tl.int32)  # ties
        running = tl.full([], 0.0, tl.float64)
        for start in range(0, tl.where(found > CANDIDATES, count, 1), CANDIDATES // CHUNK):
            column, logits = tile(
                logits_ptr,
                masks,
                row,
                size,
                survivors_ptr,
                start,
                count,
                columns_ptr,
                values_ptr,
                found,
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
                passing, latest = first_above(weights, column, target, running, end)
                token = tl.minimum(token, passing)  # later tiles have higher ids
                final = tl.maximum(final, latest)
                running += tl.sum(weights.to(tl.float64), 0)
            else:
                scores = weights / arrival(tl.load(chance_ptr), tl.load(offset_ptr), column, TOKEN_STREAM)
                score = tl.max(scores, 0)
                first = tl.min(tl.where((scores == score) & (weights > 0), column, end), 0)
                token = tl.where(score > best, first, token)
                best = tl.maximum(best, score)
        if offset_ptr is None:
            target = tl.load(chance_ptr) * running
    return tl.where(token == end, final, token)
