"""The kernels of ``structgen_kernels.canvases.class_scores``: blocks to segments, and segments to classes."""

import triton
import triton.language as tl

DEEPEST = tl.constexpr(-100.0)
"""A clamp below the floor of every row: negligible in sums that matter; its exponential is above 0 in float32."""


@triton.jit
def _joined(first_a, max_a, sum_a, first_b, max_b, sum_b):
    """Combine two runs of groups, for a segmented scan: the result is that of the last segment."""
    is_new = first_b != 0
    return first_a | first_b, tl.where(is_new, max_b, tl.maximum(max_a, max_b)), tl.where(is_new, sum_b, sum_a + sum_b)


@triton.jit
def _joined_with_moments(first_a, max_a, sum_a, moment_a, first_b, max_b, sum_b, moment_b):
    """As ``_joined``, with one more sum."""
    is_new = first_b != 0
    return (
        first_a | first_b,
        tl.where(is_new, max_b, tl.maximum(max_a, max_b)),
        tl.where(is_new, sum_b, sum_a + sum_b),
        tl.where(is_new, moment_b, moment_a + moment_b),
    )


@triton.jit
def scale_of(scale, row, IS_ALIKE: tl.constexpr, STEEPEST: tl.constexpr):
    """Return the scale of a row; ``scale`` is a scalar, or a pointer to float32 [rows]."""
    return tl.minimum(scale if IS_ALIKE else tl.load(scale + row), STEEPEST)


@triton.jit
def below(logits, largest, scale, LOWEST: tl.constexpr):
    """Return scaled logits relative to the largest, clamped to the range from ``LOWEST`` to 0."""
    return tl.minimum(tl.maximum((logits - largest) * scale, LOWEST), 0.0)


@triton.jit
def _contiguous(source, at, count, GROUP: tl.constexpr):
    """Load ``count`` logits, minus infinity beyond, in vectors of whole groups, whose mask is the same in a group."""
    whole = count // GROUP * GROUP
    logits = tl.load(source, mask=at < whole, other=float("-inf"))
    if whole < count:
        rest = tl.load(source, mask=(at >= whole) & (at < count), other=float("-inf"))
        logits = tl.where(at < whole, logits, rest)
    return logits


@triton.jit
def class_segments_kernel(
    logits_ptr,  # [rows, columns]
    logits_stride,
    rows,
    scale,
    begin_ptr,  # int32 [blocks + 1]
    places_ptr,  # int16 [blocks, GROUPS * GROUP]
    groups_ptr,  # int32 [blocks, GROUPS]
    first_segment_ptr,  # int32 [blocks]
    blocks,
    segments,
    largest_ptr,  # float32 [rows, blocks]
    totals_ptr,  # float32 [rows, blocks]
    maxima_ptr,  # float32 [rows, segments]
    sums_ptr,  # float32 [rows, segments]
    moments_ptr,  # float32 [rows, segments], or None
    IS_ALIKE: tl.constexpr,
    STEEPEST: tl.constexpr,
    MOMENTS: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
):
    """One program per block and ROWS rows.

    Logits are loaded contiguously and gathered into groups; the last group of each segment writes its entry.
    """
    block = tl.program_id(1)
    begin = tl.multiple_of(tl.load(begin_ptr + block), GROUP)
    count = tl.load(begin_ptr + block + 1) - begin
    at = tl.arange(0, GROUPS * GROUP)
    places = tl.load(places_ptr + block.to(tl.int64) * (GROUPS * GROUP) + at).to(tl.int32)  # [GROUPS * GROUP]
    is_held = places >= 0
    places = tl.maximum(places, 0)
    groups = tl.load(groups_ptr + block.to(tl.int64) * GROUPS + tl.arange(0, GROUPS))  # [GROUPS]
    first = groups & 1
    is_last = (groups & 2) != 0
    numbers = tl.load(first_segment_ptr + block) + (groups >> 2)
    row = tl.program_id(0).to(tl.int64) * ROWS
    source = logits_ptr + row * logits_stride + begin + at
    following = _contiguous(source, at, tl.where(row < rows, count, 0), GROUP)
    for each in range(ROWS):
        logits = following.to(tl.float32)
        source += logits_stride
        ahead = tl.where((row + 1 < rows) & (each + 1 < ROWS), count, 0)
        following = _contiguous(source, at, ahead, GROUP)  # prefetch of the next row
        if row < rows:
            factor = scale_of(scale, row, IS_ALIKE, STEEPEST)
            logits = tl.where(logits <= float("inf"), logits, float("inf"))  # NaN becomes plus infinity
            largest = tl.max(logits, axis=0)
            base = tl.where(tl.abs(largest) < float("inf"), largest, 0.0)
            held = tl.where(is_held, tl.gather(logits, places, axis=0), float("-inf"))
            x = below(held, base, factor, DEEPEST)
            powers = tl.where(is_held, tl.exp(x), 0.0)
            maxima = tl.max(tl.reshape(held, [GROUPS, GROUP]), axis=1)
            sums = tl.sum(tl.reshape(powers, [GROUPS, GROUP]), axis=1)
            tl.store(largest_ptr + row * blocks + block, largest)
            tl.store(totals_ptr + row * blocks + block, tl.sum(sums, axis=0))
            entry = row * segments + numbers
            if MOMENTS:
                moments = tl.sum(tl.reshape(powers * x, [GROUPS, GROUP]), axis=1)
                _, maxima, sums, moments = tl.associative_scan((first, maxima, sums, moments), 0, _joined_with_moments)
                tl.store(moments_ptr + entry, moments, mask=is_last)
            else:
                _, maxima, sums = tl.associative_scan((first, maxima, sums), 0, _joined)
            tl.store(maxima_ptr + entry, maxima, mask=is_last)
            tl.store(sums_ptr + entry, sums, mask=is_last)
        row += 1


@triton.jit
def class_scores_kernel(
    logits_ptr,  # [rows, columns]
    logits_stride,
    scale,
    class_begin_ptr,  # int32 [classes + 1]
    segment_of_ptr,  # int32 [segments]
    block_of_ptr,  # int32 [segments]
    member_begin_ptr,  # int32 [segments + 1]
    members_ptr,  # int32 [size]
    classes,
    blocks,
    segments,
    block_largest_ptr,  # float32 [rows, blocks]
    totals_ptr,  # float32 [rows, blocks]
    segment_maxima_ptr,  # float32 [rows, segments]
    sums_ptr,  # float32 [rows, segments]
    moments_ptr,  # float32 [rows, segments], or None
    maxima_ptr,  # float32 [rows, classes], as the next two
    log_maxima_ptr,
    log_sums_ptr,
    mean_logs_ptr,  # float32 [rows, classes], or None
    log_norms_ptr,  # float32 [rows], as the next two
    largest_ptr,
    scales_ptr,
    status_ptr,  # int32 [rows]
    IS_ALIKE: tl.constexpr,
    STEEPEST: tl.constexpr,
    LOWEST: tl.constexpr,
    NEGLIGIBLE: tl.constexpr,
    MASSLESS: tl.constexpr,
    NON_FINITE: tl.constexpr,
    MOMENTS: tl.constexpr,
    BLOCKS: tl.constexpr,
    CLASSES: tl.constexpr,
    MEMBERS: tl.constexpr,
):
    """One program per row and CLASSES classes; segments are added in order of ids."""
    row = tl.program_id(0).to(tl.int64)
    factor = scale_of(scale, row, IS_ALIKE, STEEPEST)
    block = tl.arange(0, BLOCKS)
    is_block = block < blocks
    block_largest = tl.load(block_largest_ptr + row * blocks + block, mask=is_block, other=float("-inf"))
    totals = tl.load(totals_ptr + row * blocks + block, mask=is_block, other=0.0)
    largest = tl.max(block_largest, axis=0)
    has_distribution = (largest > float("-inf")) & (largest < float("inf"))
    base = tl.where(has_distribution, largest, 0.0)
    norm = tl.sum(totals * tl.exp(below(block_largest, base, factor, DEEPEST)), axis=0)
    log_norm = tl.log(tl.where(has_distribution, norm, 1.0))

    lane = tl.arange(0, CLASSES)
    of = tl.program_id(1) * CLASSES + lane
    is_class = of < classes
    first = tl.load(class_begin_ptr + of, mask=is_class, other=0)
    last = tl.load(class_begin_ptr + of + 1, mask=is_class, other=0)
    member = tl.load(member_begin_ptr + first)
    members = tl.load(member_begin_ptr + last) - member  # [CLASSES]
    maxima = tl.full([CLASSES], float("-inf"), tl.float32)
    sums = tl.zeros([CLASSES], tl.float32)
    moments = tl.zeros([CLASSES], tl.float32)
    for index in range(tl.max(last - first, axis=0)):
        is_there = index < last - first
        number = row * segments + tl.load(segment_of_ptr + first + index, mask=is_there, other=0)
        place = row * blocks + tl.load(block_of_ptr + first + index, mask=is_there, other=0)
        here = tl.load(block_largest_ptr + place, mask=is_there, other=float("-inf"))
        x = below(here, base, factor, DEEPEST)
        found = tl.load(segment_maxima_ptr + number, mask=is_there, other=float("-inf"))
        powers = tl.load(sums_ptr + number, mask=is_there, other=0.0)
        maxima = tl.maximum(maxima, found)
        sums += powers * tl.exp(x)
        if MOMENTS:
            moments += (tl.load(moments_ptr + number, mask=is_there, other=0.0) + powers * x) * tl.exp(x)

    # Classes with all tokens at the floor, or with so many that clamping is not negligible.
    top = below(maxima, base, factor, LOWEST)
    floor = members.to(tl.float32) * tl.exp(tl.full([CLASSES], LOWEST, tl.float32))
    is_possible = (members > 0) & (largest + floor * 0 > float("-inf")) & (largest + floor * 0 < float("inf"))
    is_low = is_possible & (sums * NEGLIGIBLE < floor)
    is_floor = is_low & (top <= LOWEST)
    sums = tl.where(is_floor, floor, sums)
    moments = tl.where(is_floor, floor * LOWEST, moments)
    again = is_low & (top > LOWEST)
    for _ in range(tl.sum(again.to(tl.int32), axis=0)):
        one = tl.min(tl.where(again, lane, CLASSES), axis=0)
        is_one = lane == one
        again = again & (lane != one)
        start = tl.sum(tl.where(is_one, member, 0), axis=0)
        stop = start + tl.sum(tl.where(is_one, members, 0), axis=0)
        part = tl.zeros([MEMBERS], tl.float32)
        moment = tl.zeros([MEMBERS], tl.float32)
        for begin in range(start, stop, MEMBERS):
            at = begin + tl.arange(0, MEMBERS)
            token = tl.load(members_ptr + at, mask=at < stop, other=0)
            logits = tl.load(logits_ptr + row * logits_stride + token, mask=at < stop, other=0.0).to(tl.float32)
            x = below(logits, base, factor, LOWEST)
            powers = tl.where(at < stop, tl.exp(x), 0.0)
            part += powers
            moment += powers * x
        sums = tl.where(is_one, tl.sum(part, axis=0), sums)
        moments = tl.where(is_one, tl.sum(moment, axis=0), moments)

    out = row * classes + of
    log_sums = tl.log(tl.where(is_possible, sums, 1.0)) - log_norm
    tl.store(maxima_ptr + out, tl.where(is_possible, maxima, float("-inf")), mask=is_class)
    tl.store(log_maxima_ptr + out, tl.where(is_possible, top - log_norm, float("-inf")), mask=is_class)
    tl.store(log_sums_ptr + out, tl.where(is_possible, log_sums, float("-inf")), mask=is_class)
    if MOMENTS:
        mean_logs = (moments - sums * log_norm) * tl.exp(-log_norm)
        tl.store(mean_logs_ptr + out, tl.where(is_possible, mean_logs, 0.0), mask=is_class)
    if tl.program_id(1) == 0:
        tl.store(log_norms_ptr + row, tl.where(has_distribution, log_norm, float("-inf")))
        tl.store(largest_ptr + row, tl.where(has_distribution, largest, float("-inf")))
        tl.store(scales_ptr + row, factor)
        tl.store(status_ptr + row, tl.where(has_distribution, 0, tl.where(largest > 0, NON_FINITE, MASSLESS)))
