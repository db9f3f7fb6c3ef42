"""The kernels between the passes of ``structgen_kernels.canvases.dingo``."""

import triton
import triton.language as tl

from structgen_kernels.jit.noise import exponential, random_words


@triton.jit(do_not_specialize=["labels", "size"])
def settle_labels_kernel(
    weights_ptr,  # float32 [rows, labels]
    labels,
    canvas_ptr,  # int32 [rows]
    class_of_ptr,  # int32 [size]
    size,
    class_begin_ptr,  # int32 [classes + 1]
    class_label_ptr,  # int32, the labels of each class
    IS_TAIL_FREE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program per slot: in a fixed slot, labels of its token get log weight 0, all others minus infinity."""
    row = tl.program_id(0).to(tl.int64)
    weights_ptr += row * labels
    token = tl.load(canvas_ptr + row)
    if token != -1:
        for first in range(0, labels, BLOCK):
            label = first + tl.arange(0, BLOCK)
            tl.store(weights_ptr + label, tl.full([BLOCK], float("-inf"), tl.float32), mask=label < labels)
        tl.debug_barrier()  # the stores below must follow those of other threads above
        known = (token >= 0) & (token < size)
        of = tl.load(class_of_ptr + token, mask=known, other=0)
        begin = tl.load(class_begin_ptr + of)
        end = tl.where(known, tl.load(class_begin_ptr + of + 1), begin)
        for first in range(begin, end, BLOCK):
            place = first + tl.arange(0, BLOCK)
            label = tl.load(class_label_ptr + place, mask=place < end, other=0)
            tl.store(weights_ptr + label, tl.full([BLOCK], 0.0, tl.float32), mask=place < end)
    elif IS_TAIL_FREE:
        tl.store(weights_ptr + labels - 1, 0.0)


@triton.jit(do_not_specialize=["free_tail", "classes"])
def label_classes_kernel(
    canvas_ptr,  # int32 [rows]
    label_ptr,  # int32 [rows], the label of the run; -1 for none
    label_begin_ptr,  # int32 [labels + 1]
    held_ptr,  # int32, the classes of each label
    free_tail,  # the label of slots without a token to choose, or -1
    maxima_ptr,  # float32 [rows, classes]
    log_sums_ptr,  # float32 [rows, classes]
    largest_ptr,  # float32 [rows]
    scales_ptr,  # float32 [rows]
    classes,
    seeds_ptr,  # int64 [rows]
    offsets_ptr,  # int64 [rows]
    chosen_ptr,  # int32 [rows]
    IS_DRAW: tl.constexpr,
    LOWEST: tl.constexpr,
    STREAM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program per slot: a class of the label of its edge, or -1 if there is no token to choose."""
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(label_ptr + row)
    is_asked = (tl.load(canvas_ptr + row) == -1) & (label >= 0) & (label != free_tail)
    begin = tl.load(label_begin_ptr + label, mask=is_asked, other=0)
    end = tl.load(label_begin_ptr + label + 1, mask=is_asked, other=0)
    best = tl.full([], float("-inf"), tl.float64)
    chosen = label * 0 - 1
    for first in range(begin, end, BLOCK):
        place = first + tl.arange(0, BLOCK)
        live = place < end
        of = tl.load(held_ptr + place, mask=live, other=0)
        if IS_DRAW:
            scores = tl.load(log_sums_ptr + row * classes + of, mask=live, other=float("-inf")).to(tl.float64)
            seed, offset = tl.load(seeds_ptr + row), tl.load(offsets_ptr + row)
            high, low, _, _ = random_words(seed, offset, place - begin + 1, STREAM)
            scores -= tl.log(exponential(high, low)).to(tl.float64)
        else:
            logit = tl.load(maxima_ptr + row * classes + of, mask=live, other=float("-inf")).to(tl.float64)
            scaled = (logit - tl.load(largest_ptr + row)) * tl.load(scales_ptr + row)
            scores = tl.where(logit > float("-inf"), tl.maximum(scaled, LOWEST), logit)
        largest, at = tl.max(scores, 0, return_indices=True, return_indices_tie_break_left=True)
        chosen = tl.where(largest > best, tl.load(held_ptr + first + at), chosen)
        best = tl.maximum(best, largest)
    tl.store(chosen_ptr + row, chosen)


@triton.jit(do_not_specialize=["slots", "filler"])
def fill_canvas_kernel(
    canvas_ptr,  # int32 [batch, slots]
    chosen_ptr,  # int32 [batch, slots], classes
    tokens_ptr,  # int32 [batch, slots]: tokens of the classes on entry, of the canvas on return
    logits_ptr,  # [batch * slots, columns]
    logits_stride,
    largest_ptr,  # float32 [batch * slots]
    scales_ptr,  # float32 [batch * slots]
    log_norms_ptr,  # float32 [batch * slots]
    row_status_ptr,  # int32 [batch * slots]
    totals_ptr,  # float64 [batch]
    log_prob_ptr,  # float64 [batch]
    status_ptr,  # int32 [batch]
    slots,
    filler,
    IS_DRAW: tl.constexpr,
    LOWEST: tl.constexpr,
    CHOSEN: tl.constexpr,
    EMPTY: tl.constexpr,
    NON_FINITE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program per canvas: its tokens, their log-probability and the status."""
    canvas = tl.program_id(0).to(tl.int64)
    total = tl.load(totals_ptr + canvas)
    is_filled = total > float("-inf")
    log_prob = tl.full([], 0.0, tl.float64)
    broken = tl.full([], 0, tl.int32)
    for first in range(0, slots, BLOCK):
        slot = first + tl.arange(0, BLOCK)
        live = slot < slots
        row = canvas * slots + slot
        held = tl.load(canvas_ptr + row, mask=live, other=0)
        of = tl.load(chosen_ptr + row, mask=live, other=-1)
        is_chosen = live & (of >= 0)
        token = tl.load(tokens_ptr + row, mask=is_chosen, other=0)
        row_status = tl.load(row_status_ptr + row, mask=live & (held == -1), other=0)
        broken = tl.maximum(broken, tl.max((row_status == NON_FINITE).to(tl.int32), 0))
        if IS_DRAW:
            logit = tl.load(logits_ptr + row * logits_stride + token, mask=is_chosen, other=0.0).to(tl.float64)
            scaled = (logit - tl.load(largest_ptr + row, mask=is_chosen, other=0.0)) * tl.load(
                scales_ptr + row, mask=is_chosen, other=0.0
            )
            each = tl.maximum(scaled, LOWEST) - tl.load(log_norms_ptr + row, mask=is_chosen, other=0.0)
            log_prob += tl.sum(tl.where(is_chosen, each, 0.0), 0)
        written = tl.where(held != -1, held, tl.where(of >= 0, token, filler))
        tl.store(tokens_ptr + row, tl.where(is_filled, written, -1), mask=live)
    tl.store(log_prob_ptr + canvas, tl.where(is_filled, log_prob, float("-inf")) if IS_DRAW else total)
    tl.store(status_ptr + canvas, tl.where(is_filled, CHOSEN, tl.where(broken > 0, NON_FINITE, EMPTY)))
