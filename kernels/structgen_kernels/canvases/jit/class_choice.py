"""The kernels of ``structgen_kernels.canvases.class_choice``."""

import triton
import triton.language as tl

from structgen_kernels.canvases.jit.class_scores import DEEPEST, below
from structgen_kernels.jit.noise import random_words


@triton.jit
def _asked(rows, rows_ptr, classes_ptr, class_begin_ptr, classes, status_ptr, choice):
    """Return the row of a choice, and the first and last entry of its class; no entries if the choice is skipped."""
    row = tl.load(rows_ptr + choice).to(tl.int64)
    of = tl.load(classes_ptr + choice).to(tl.int64)
    is_asked = (row >= 0) & (row < rows) & (of >= 0) & (of < classes)
    is_asked = is_asked & (tl.load(status_ptr + row, mask=is_asked, other=1) == 0)
    first = tl.load(class_begin_ptr + of, mask=is_asked, other=0)
    last = tl.load(class_begin_ptr + of + 1, mask=is_asked, other=0)
    return row, first, last


@triton.jit
def class_best_kernel(
    logits_ptr,  # [rows, columns]
    logits_stride,
    rows,
    rows_ptr,  # int [choices]
    classes_ptr,  # int [choices]
    class_begin_ptr,  # int32 [classes + 1]
    segment_of_ptr,  # int32 [segments]
    block_of_ptr,  # int32 [segments]
    member_begin_ptr,  # int32 [segments + 1]
    members_ptr,  # int32 [size]
    classes,
    blocks,
    segments,
    block_largest_ptr,  # float32 [rows, blocks]
    maxima_ptr,  # float32 [rows, segments]
    sums_ptr,  # float32 [rows, segments]
    largest_ptr,  # float32 [rows]
    scales_ptr,  # float32 [rows]
    status_ptr,  # int32 [rows]
    out_ptr,  # int32 [choices]
    BLOCKS: tl.constexpr,
    MEMBERS: tl.constexpr,
):
    """One program per choice: the first segment with the maximum, then its first token with the maximum."""
    choice = tl.program_id(0).to(tl.int64)
    row, first, last = _asked(rows, rows_ptr, classes_ptr, class_begin_ptr, classes, status_ptr, choice)
    found = -1
    if first < last:
        part = tl.arange(0, BLOCKS)
        is_part = part < last - first
        number = row * segments + tl.load(segment_of_ptr + first + part, mask=is_part, other=0)
        maxima = tl.load(maxima_ptr + number, mask=is_part, other=float("-inf"))
        largest = tl.max(maxima, axis=0)
        chosen = first + tl.min(tl.where(is_part & (maxima == largest), part, BLOCKS), axis=0)
        begin = tl.load(member_begin_ptr + chosen)
        stop = tl.load(member_begin_ptr + chosen + 1)
        while (begin < stop) & (found < 0):
            at = begin + tl.arange(0, MEMBERS)
            token = tl.load(members_ptr + at, mask=at < stop, other=0)
            logits = tl.load(logits_ptr + row * logits_stride + token, mask=at < stop, other=0.0).to(tl.float32)
            nearest = tl.min(tl.where((at < stop) & (logits == largest), token, 2147483647), axis=0)
            found = tl.where(nearest < 2147483647, nearest, -1)
            begin += MEMBERS
    tl.store(out_ptr + choice, found)


@triton.jit
def class_draw_kernel(
    logits_ptr,  # [rows, columns]
    logits_stride,
    rows,
    rows_ptr,  # int [choices]
    classes_ptr,  # int [choices]
    class_begin_ptr,  # int32 [classes + 1]
    segment_of_ptr,  # int32 [segments]
    block_of_ptr,  # int32 [segments]
    member_begin_ptr,  # int32 [segments + 1]
    members_ptr,  # int32 [size]
    classes,
    blocks,
    segments,
    block_largest_ptr,  # float32 [rows, blocks]
    maxima_ptr,  # float32 [rows, segments]
    sums_ptr,  # float32 [rows, segments]
    largest_ptr,  # float32 [rows]
    scales_ptr,  # float32 [rows]
    status_ptr,  # int32 [rows]
    numbers_ptr,  # float64 [choices]; or int64 [choices], seeds
    offsets_ptr,  # int64 [choices], or None
    out_ptr,  # int32 [choices]
    LOWEST: tl.constexpr,
    NEGLIGIBLE: tl.constexpr,
    IS_NOISE: tl.constexpr,
    STREAM: tl.constexpr,
    BLOCKS: tl.constexpr,
    MEMBERS: tl.constexpr,
):
    """One program per choice: samples a segment, unless sums are too small to be accurate, then a token."""
    choice = tl.program_id(0).to(tl.int64)
    row, first, last = _asked(rows, rows_ptr, classes_ptr, class_begin_ptr, classes, status_ptr, choice)
    found = -1
    if first < last:
        if IS_NOISE:
            seed, offset = tl.load(numbers_ptr + choice), tl.load(offsets_ptr + choice)
            high, low, _, _ = random_words(seed, offset, tl.zeros([1], tl.int32), STREAM)
            words = high.to(tl.float64) * 2.3283064365386963e-10 + (low >> 11).to(tl.float64) * 1.1102230246251565e-16
            share = tl.sum(words, axis=0)
        else:
            share = tl.load(numbers_ptr + choice)
        largest = tl.load(largest_ptr + row)
        scale = tl.load(scales_ptr + row)
        part = tl.arange(0, BLOCKS)
        is_part = part < last - first
        number = row * segments + tl.load(segment_of_ptr + first + part, mask=is_part, other=0)
        place = row * blocks + tl.load(block_of_ptr + first + part, mask=is_part, other=0)
        here = tl.load(block_largest_ptr + place, mask=is_part, other=float("-inf"))
        sums = tl.load(sums_ptr + number, mask=is_part, other=0.0) * tl.exp(below(here, largest, scale, DEEPEST))
        sums = sums.to(tl.float64)  # [BLOCKS]
        total = tl.sum(sums, axis=0)
        begin = tl.load(member_begin_ptr + first)
        stop = tl.load(member_begin_ptr + last)
        floor = (stop - begin).to(tl.float64) * 1.8048513878454153e-35  # exp(LOWEST) per token
        if total * NEGLIGIBLE >= floor:
            running = tl.cumsum(sums, axis=0)
            wanted = share * total
            chosen = tl.sum((is_part & (running <= wanted)).to(tl.int32), axis=0)
            chosen = tl.minimum(chosen, tl.max(tl.where(sums > 0, part, 0), axis=0))  # rounding may exceed it
            mass = tl.sum(tl.where(part == chosen, sums, 0.0), axis=0)
            before = tl.sum(tl.where(part == chosen, running, 0.0), axis=0) - mass
            share = tl.maximum((wanted - before) / mass, 0.0)
            begin = tl.load(member_begin_ptr + first + chosen)
            stop = tl.load(member_begin_ptr + first + chosen + 1)
        powers = tl.zeros([MEMBERS], tl.float64)
        for start in range(begin, stop, MEMBERS):
            at = start + tl.arange(0, MEMBERS)
            token = tl.load(members_ptr + at, mask=at < stop, other=0)
            logits = tl.load(logits_ptr + row * logits_stride + token, mask=at < stop, other=0.0).to(tl.float32)
            powers += tl.where(at < stop, tl.exp(below(logits, largest, scale, LOWEST)), 0.0)
        wanted = share * tl.sum(powers, axis=0)
        before = wanted * 0
        final = tl.load(members_ptr + stop - 1)
        while (begin < stop) & (found < 0):
            at = begin + tl.arange(0, MEMBERS)
            token = tl.load(members_ptr + at, mask=at < stop, other=0)
            logits = tl.load(logits_ptr + row * logits_stride + token, mask=at < stop, other=0.0).to(tl.float32)
            powers = tl.where(at < stop, tl.exp(below(logits, largest, scale, LOWEST)), 0.0).to(tl.float64)
            running = before + tl.cumsum(powers, axis=0)
            nearest = tl.min(tl.where((at < stop) & (running > wanted), token, 2147483647), axis=0)
            found = tl.where(nearest < 2147483647, nearest, -1)
            before += tl.sum(powers, axis=0)
            begin += MEMBERS
        found = tl.where(found < 0, final, found)
    tl.store(out_ptr + choice, found)
