"""The kernels of ``structgen_kernels.trees.tree_verification``."""

import triton
import triton.language as tl

from structgen_kernels.jit.noise import exponential, random_words
from structgen_kernels.masks.jit.mask_words import allowed_columns, allowed_words
from structgen_kernels.trees.jit.tree_children import clear_path, find_child

_ACCEPT = tl.constexpr(3)  # STREAMS["accept"]
_RESIDUAL_BLOCK = tl.constexpr(6)  # STREAMS["residual_block"]
_RESIDUAL_TOKEN = tl.constexpr(7)  # STREAMS["residual_token"]
_LOWEST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def _allowed(
    masks,
    size,
    row,  # int64
    base,  # the first column, a multiple of 32
    N: tl.constexpr,
):
    """Return which columns [N] of a position are allowed."""
    allowed = base + tl.arange(0, N) < size
    if masks is not None:
        word = base // 32 + tl.arange(0, N // 32)
        words = allowed_words(masks, row, size, word)
        allowed &= allowed_columns(words, N // 32)
    return allowed


@triton.jit
def _divisor(temperature_ptr, row):
    """Return the divisor of logits: the temperature, 1 for temperature 0, NaN for negative ones."""
    if temperature_ptr is None:
        divisor = 1.0
    else:
        temperature = tl.load(temperature_ptr + row)
        divisor = tl.where(temperature == 0, 1.0, tl.where(temperature > 0, temperature, float("nan")))
    return divisor


@triton.jit
def _sum_block(scaled, allowed):
    """Return the maximum of columns [N], and the sum of their exponentials relative to the maximum.

    The maximum is minus infinity if no column is allowed, and the lowest finite number if all allowed columns are minus
    infinity.
    """
    most = tl.max(tl.where(allowed, tl.maximum(scaled, _LOWEST), float("-inf")), 0)
    shift = tl.where((most > _LOWEST) & (most < float("inf")), most, 0.0)
    return most, tl.sum(tl.exp(scaled - shift), 0)


@triton.jit
def sum_positions_kernel(
    logits_ptr,  # [positions, columns]
    logits_stride,
    temperature_ptr,  # float32 [positions] or None
    distributions_ptr,  # [distributions, columns]
    distributions_stride,
    distribution_rows_ptr,  # int32 [positions]
    masks,  # MaskArgs or None
    size,
    p_maxima_ptr,  # float32 [positions, blocks]
    p_sums_ptr,
    p_best_ptr,  # int32 [positions, blocks]
    q_maxima_ptr,  # float32 [positions, blocks]
    q_sums_ptr,
    blocks,
    BLOCK: tl.constexpr,
):
    """One program per position and block of columns."""
    row = tl.program_id(0).to(tl.int64)
    base = tl.program_id(1) * BLOCK
    column = base + tl.arange(0, BLOCK)
    allowed = _allowed(masks, size, row, base, BLOCK)
    place = row * blocks + tl.program_id(1)
    inside = column < size
    logit = tl.load(logits_ptr + row * logits_stride + column, mask=inside, other=float("-inf")).to(tl.float32)
    scaled = tl.where(allowed, logit / _divisor(temperature_ptr, row), float("-inf"))
    most, total = _sum_block(scaled, allowed)
    tl.store(p_maxima_ptr + place, most)
    tl.store(p_sums_ptr + place, total)
    tl.store(p_best_ptr + place, tl.min(tl.where(allowed & (scaled == most), column, size), 0))
    distribution = tl.load(distribution_rows_ptr + row)
    if distribution >= 0:
        distribution_at = distributions_ptr + distribution.to(tl.int64) * distributions_stride + column
        logit = tl.load(distribution_at, mask=inside, other=float("-inf")).to(tl.float32)
        most, total = _sum_block(tl.where(allowed, logit, float("-inf")), allowed)
        tl.store(q_maxima_ptr + place, most)
        tl.store(q_sums_ptr + place, total)


@triton.jit
def _total(maxima, sums):
    """Return the log-sum-exp over blocks [N]; minus infinity for no mass, NaN or plus infinity if a block is."""
    most = tl.max(maxima, 0)
    shift = tl.where((most > _LOWEST) & (most < float("inf")), most, 0.0)
    # Blocks without probability have the sum 0; their maximum is ignored.
    weight = tl.exp(tl.where(maxima > _LOWEST, maxima, float("-inf")) - shift)
    total = tl.sum(tl.where(sums == 0, 0.0, sums * weight), 0)
    return tl.where(total == 0, float("-inf"), shift + tl.log(tl.where(total == 0, 1.0, total)))


@triton.jit
def _left(
    logit_ptr,  # [columns], of the position
    distribution_ptr,  # [columns]
    divisor,
    p_mass,
    q_mass,
    masks,
    size,
    row,
    base,  # the first column, a multiple of 32
    kept,
    drafts_ptr,
    refused_ptr,
    scales_ptr,
    N: tl.constexpr,
):
    """Return, for columns [N], the residual of ``p`` after ``kept`` rejections, ``q``, and which columns were rejected.

    Residual and ``q`` are 0 for columns that are not allowed, which are read too: under a mask of single columns, each
    would be a load of its own.  ``q`` is not read if ``q_mass`` is minus infinity.
    """
    column = base + tl.arange(0, N)
    allowed = _allowed(masks, size, row, base, N)
    p = tl.load(logit_ptr + column, mask=column < size, other=float("-inf")).to(tl.float32)
    drafted = tl.where(q_mass > float("-inf"), size, 0)
    q = tl.load(distribution_ptr + column, mask=column < drafted, other=float("-inf")).to(tl.float32)
    left = tl.where(allowed, tl.exp(p / divisor - p_mass), 0.0)
    q = tl.where(allowed, tl.exp(q - tl.where(drafted > 0, q_mass, 0.0)), 0.0)
    gone = column < 0
    for index in range(kept):
        is_draft = column == tl.load(drafts_ptr + tl.load(refused_ptr + index))
        left = tl.where(is_draft, 0.0, tl.maximum(left * tl.load(scales_ptr + index) - q, 0.0))
        gone |= is_draft
    return left, q, gone


@triton.jit
def _winner(weights, seed, offset, node, STREAM: tl.constexpr, N: tl.constexpr, count):
    """Return the winner of an exponential race [N]; entries with weight 0 take no part."""
    place = tl.arange(0, N)
    a, b, _, _ = random_words(seed, offset, (node + 1) * count + place, STREAM)
    runs = weights > 0
    times = tl.where(runs, exponential(a, b) / tl.where(runs, weights, 1.0), float("inf"))
    return tl.min(tl.where(runs & (times == tl.min(times, 0)), place, N), 0)


@triton.jit
def verify_tree_kernel(
    logits_ptr,
    logits_stride,
    temperature_ptr,
    distributions_ptr,
    distributions_stride,
    distribution_rows_ptr,
    masks,
    size,
    p_maxima_ptr,
    p_sums_ptr,
    p_best_ptr,
    q_maxima_ptr,
    q_sums_ptr,
    blocks,
    first_ptr,  # int32 [requests + 1]
    parents_ptr,  # int32 [nodes]
    drafts_ptr,  # int32 [nodes]
    seeds_ptr,  # int64 [requests]
    offsets_ptr,  # int64 [requests]
    residual_sums_ptr,  # float32 [requests, 2, blocks]
    refused_ptr,  # int32 [nodes]
    scales_ptr,  # float32 [nodes]
    nodes_ptr,  # int32 [nodes]
    accepted_ptr,  # bool [nodes]
    counts_ptr,  # int32 [requests]
    tokens_ptr,  # int32 [requests]
    status_ptr,  # int32 [requests]
    REPLACED: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,  # blocks per load of the pass after a rejection, which waits for each load
    MAX_BLOCKS: tl.constexpr,
    NODES: tl.constexpr,
    TINY: tl.constexpr,
    SEEN: tl.constexpr,
):
    """One program per request, which walks down its tree."""
    request = tl.program_id(0)
    start = tl.load(first_ptr + request).to(tl.int64)
    end = tl.load(first_ptr + request + 1) - tl.load(first_ptr + request)
    seed = tl.load(seeds_ptr + request)
    offset = tl.load(offsets_ptr + request)
    parents_ptr += start
    drafts_ptr += start
    refused_ptr += start
    scales_ptr += start
    nodes_ptr += start
    accepted_ptr += start
    residual_sums_ptr += request.to(tl.int64) * 2 * blocks
    clear_path(nodes_ptr, accepted_ptr, end, NODES)
    each = tl.arange(0, MAX_BLOCKS)
    inside = each < blocks
    none = end * 0 - 1
    node = none
    count = end * 0
    token = none
    status = count
    going = count == 0
    while going:
        row = start + request + 1 + node
        maxima = tl.load(p_maxima_ptr + row * blocks + each, mask=inside, other=float("-inf"))
        sums = tl.load(p_sums_ptr + row * blocks + each, mask=inside, other=0.0)
        p_mass = _total(maxima, sums)
        most = tl.max(maxima, 0)
        is_distribution = (p_mass > float("-inf")) & (p_mass < float("inf"))
        empty = tl.where(most == float("-inf"), 1, 2)  # EMPTY, MASSLESS
        status = tl.where(is_distribution, 0, tl.where(p_mass == float("-inf"), empty, 3))  # CHOSEN, NON_FINITE
        divisor = _divisor(temperature_ptr, row)
        is_greedy = False
        if temperature_ptr is not None:
            is_greedy = tl.load(temperature_ptr + row) == 0
        token = none
        if is_distribution & is_greedy:
            best = tl.load(p_best_ptr + row * blocks + each, mask=inside, other=0)
            token = tl.min(tl.where(inside & (maxima == most), best, size), 0)
        elif is_distribution:
            kept = count * 0
            p_total = p_mass * 0 + 1.0
            q_total = p_mass * 0 + 1.0
            q_mass = p_mass * 0
            distribution = tl.load(distribution_rows_ptr + row)
            child = end
            if distribution >= 0:
                child = find_child(parents_ptr, drafts_ptr, node + 1, end, node, none, True, NODES)
            distribution_ptr = distributions_ptr + tl.maximum(distribution, 0).to(tl.int64) * distributions_stride
            logit_ptr = logits_ptr + row * logits_stride
            if child < end:
                q_maxima = tl.load(q_maxima_ptr + row * blocks + each, mask=inside, other=float("-inf"))
                q_sums = tl.load(q_sums_ptr + row * blocks + each, mask=inside, other=0.0)
                q_mass = _total(q_maxima, q_sums)
                status = tl.where(q_mass < float("inf"), 0, 3)  # CHOSEN, NON_FINITE (also for NaN)
                child = tl.where((q_mass > float("-inf")) & (q_mass < float("inf")), child, end)
            while child < end:
                draft = tl.load(drafts_ptr + child)
                # The 32 columns of the mask word of the draft token.
                near = tl.maximum(draft, 0) // 32 * 32
                near_left, near_q, near_gone = _left(
                    logit_ptr,
                    distribution_ptr,
                    divisor,
                    p_mass,
                    q_mass,
                    masks,
                    size,
                    row,
                    near,
                    kept,
                    drafts_ptr,
                    refused_ptr,
                    scales_ptr,
                    32,
                )
                is_draft = near + tl.arange(0, 32) == draft
                if not REPLACED:
                    near_q = tl.where(near_gone, 0.0, near_q)
                p_draft = tl.sum(tl.where(is_draft, near_left, 0.0), 0)
                q_draft = tl.sum(tl.where(is_draft, near_q, 0.0), 0)
                following = find_child(parents_ptr, drafts_ptr, child + 1, end, node, none, True, NODES)
                if q_draft > 0:
                    a, b, _, _ = random_words(seed, offset, child, _ACCEPT)
                    uniform = a.to(tl.float32) * 2.3283064365386963e-10
                    uniform += (b.to(tl.float32) + 0.5) * 5.421010862427522e-20
                    ratio = p_draft * q_total / (q_draft * p_total)
                    if (p_draft > 0) & ((ratio >= 1) | (uniform < ratio)):
                        token = draft
                        following = end
                    else:
                        scale = q_total / p_total
                        total = p_mass * 0
                        q_rest = p_mass * 0
                        slot = residual_sums_ptr + ((kept + 1) & 1) * blocks
                        for first in range(0, blocks, TILE):
                            base = first * BLOCK
                            left, q, gone = _left(
                                logit_ptr,
                                distribution_ptr,
                                divisor,
                                p_mass,
                                q_mass,
                                masks,
                                size,
                                row,
                                base,
                                kept,
                                drafts_ptr,
                                refused_ptr,
                                scales_ptr,
                                TILE * BLOCK,
                            )
                            gone |= base + tl.arange(0, TILE * BLOCK) == draft
                            left = tl.where(gone, 0.0, tl.maximum(left * scale - q, 0.0))
                            rests = tl.sum(tl.reshape(left, [TILE, BLOCK]), 1)
                            q_rest += tl.sum(tl.where(gone, 0.0, q), 0)
                            total += tl.sum(rests, 0)
                            block = first + tl.arange(0, TILE)
                            tl.store(slot + block, rests, mask=block < blocks)
                        if total > TINY:
                            tl.store(refused_ptr + kept, child)
                            tl.store(scales_ptr + kept, scale)
                            kept += 1
                            p_total = total
                            if not REPLACED:
                                q_total = q_rest
                                following = tl.where(q_rest > TINY, following, end)
                        else:
                            following = end
                        tl.debug_barrier()  # other threads of the program read the stored values
                child = following
            if (token < 0) & (status == 0):
                weights = sums * tl.exp(tl.where(maxima > _LOWEST, maxima, float("-inf")) - p_mass)
                if kept > 0:
                    weights = tl.load(residual_sums_ptr + (kept & 1) * blocks + each, mask=inside, other=0.0)
                weights = tl.where(weights > SEEN, weights, 0.0)
                winner = _winner(weights, seed, offset, node, _RESIDUAL_BLOCK, MAX_BLOCKS, blocks)
                stretch = winner * BLOCK
                chances, _, _ = _left(
                    logit_ptr,
                    distribution_ptr,
                    divisor,
                    p_mass,
                    tl.where(kept > 0, q_mass, float("-inf")),
                    masks,
                    size,
                    row,
                    stretch,
                    kept,
                    drafts_ptr,
                    refused_ptr,
                    scales_ptr,
                    BLOCK,
                )
                token = stretch + _winner(chances, seed, offset, node, _RESIDUAL_TOKEN, BLOCK, BLOCK)
        token = tl.where(status == 0, token, none)
        child = find_child(parents_ptr, drafts_ptr, node + 1, end, node, token, False, NODES)
        going = child < end
        if going:
            tl.store(nodes_ptr + count, child)
            tl.store(accepted_ptr + child, 1)
            count += 1
            node = child
    tl.store(counts_ptr + request, count)
    tl.store(tokens_ptr + request, token)
    tl.store(status_ptr + request, status)
