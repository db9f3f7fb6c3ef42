"""The kernels of ``structgen_kernels.canvases.chain_messages``.

A program reads what it has stored in the slot before.  Other threads of the program see a store only after a barrier,
so there is a barrier between slots.  Other programs never read these values.
"""

import triton
import triton.language as tl


@triton.jit
def _added(left_ptr, right_ptr, left, right, live):
    """Add two numbers per edge in double precision; NaN and plus infinity count as minus infinity."""
    one = tl.load(left_ptr + left, mask=live, other=float("-inf")).to(tl.float64)
    other = tl.load(right_ptr + right, mask=live, other=float("-inf")).to(tl.float64)
    return one + tl.where(other < float("inf"), other, float("-inf"))


@triton.jit
def reduce_groups(
    left_ptr,  # float64, indexed by the left indices of edges
    right_ptr,  # float32 or float64, indexed by the right indices of edges
    out_ptr,  # float64 [groups]
    narrow_ptr,  # int32 [rows]
    narrow_left_ptr,  # int32 [WIDTH, rows]
    narrow_right_ptr,
    rows,
    wide_ptr,  # int32 [wide]
    wide_begin_ptr,  # int32 [wide + 1]
    wide_left_ptr,
    wide_right_ptr,
    wide,
    IS_MAX: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Store the maximum, or the log-sum-exp, over the edges of each group.

    Additions and maxima are in double precision.  Exponentials and logarithms are in single precision; their arguments
    are differences from the maximum.
    """
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)
        place = tl.arange(0, WIDTH).to(tl.int64)[:, None] * rows + row[None, :]  # [WIDTH, ROWS]
        left = tl.load(narrow_left_ptr + place, mask=(row < rows)[None, :], other=-1)
        right = tl.load(narrow_right_ptr + place, mask=(row < rows)[None, :], other=-1)
        values = _added(left_ptr, right_ptr, left, right, left >= 0)
        made = tl.max(values, 0)  # [ROWS]
        if not IS_MAX:
            base = tl.where(made > float("-inf"), made, 0.0)
            total = tl.sum(tl.exp((values - base[None, :]).to(tl.float32)), 0)  # [ROWS], at least 1, or 0
            made += tl.log(tl.maximum(total, 1.0)).to(tl.float64)
        group = tl.load(narrow_ptr + row, mask=row < rows, other=0)
        tl.store(out_ptr + group, made, mask=row < rows)
    for number in range(wide):
        begin = tl.load(wide_begin_ptr + number)
        end = tl.load(wide_begin_ptr + number + 1)
        largest = tl.full([], float("-inf"), tl.float64)
        total = tl.full([], 0.0, tl.float32)
        for first in range(begin, end, WIDE):
            edge = first + tl.arange(0, WIDE)
            left = tl.load(wide_left_ptr + edge, mask=edge < end, other=-1)
            right = tl.load(wide_right_ptr + edge, mask=edge < end, other=-1)
            values = _added(left_ptr, right_ptr, left, right, left >= 0)  # [WIDE]
            larger = tl.maximum(largest, tl.max(values, 0))
            if not IS_MAX:
                base = tl.where(larger > float("-inf"), larger, 0.0)
                total = total * tl.exp((largest - base).to(tl.float32))
                total += tl.sum(tl.exp((values - base).to(tl.float32)), 0)
            largest = larger
        if not IS_MAX:
            largest += tl.log(tl.maximum(total, 1.0)).to(tl.float64)
        tl.store(out_ptr + tl.load(wide_ptr + number), largest)


@triton.jit(do_not_specialize=["slots", "states", "rows", "wide"])
def chain_messages_kernel(
    weights_ptr,  # [batch, slots, labels]
    weights_canvas_stride,
    weights_slot_stride,
    slots,
    ends_ptr,  # float64 [states], the first message
    states,
    out_ptr,  # float64 [batch, slots + 1, states]
    narrow_ptr,
    narrow_left_ptr,
    narrow_right_ptr,
    rows,
    wide_ptr,
    wide_begin_ptr,
    wide_left_ptr,
    wide_right_ptr,
    wide,
    IS_BACKWARD: tl.constexpr,
    IS_MAX: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDE: tl.constexpr,
):
    """One program per canvas, which loops over its slots."""
    canvas = tl.program_id(0).to(tl.int64)
    weights_ptr += canvas * weights_canvas_stride
    out_ptr += canvas * (slots + 1) * states
    message = out_ptr
    if IS_BACKWARD:
        message += (canvas * 0 + slots) * states
    for first in range(0, states, WIDE):
        state = first + tl.arange(0, WIDE)
        tl.store(message + state, tl.load(ends_ptr + state, mask=state < states, other=0.0), mask=state < states)
    tl.debug_barrier()
    for step in range(slots):
        slot = step
        following = message + states
        if IS_BACKWARD:
            slot = slots - 1 - step
            following = message - states
        reduce_groups(
            message,
            weights_ptr + slot.to(tl.int64) * weights_slot_stride,
            following,
            narrow_ptr,
            narrow_left_ptr,
            narrow_right_ptr,
            rows,
            wide_ptr,
            wide_begin_ptr,
            wide_left_ptr,
            wide_right_ptr,
            wide,
            IS_MAX,
            ROWS,
            WIDTH,
            WIDE,
        )
        message = following
        tl.debug_barrier()


@triton.jit(do_not_specialize=["slots", "states", "labels", "rows", "wide"])
def chain_label_masses_kernel(
    forward_ptr,  # float64 [batch, slots + 1, states]
    backward_ptr,  # float64 [batch, slots + 1, states]
    slots,
    states,
    labels,
    out_ptr,  # float64 [batch, slots, labels]
    narrow_ptr,
    narrow_left_ptr,
    narrow_right_ptr,
    rows,
    wide_ptr,
    wide_begin_ptr,
    wide_left_ptr,
    wide_right_ptr,
    wide,
    IS_MAX: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDE: tl.constexpr,
):
    """One program per slot of a canvas."""
    number = tl.program_id(0).to(tl.int64)
    before = number + number // slots  # the row of messages before the slot; a canvas has slots + 1 rows
    reduce_groups(
        forward_ptr + before * states,
        backward_ptr + (before + 1) * states,
        out_ptr + number * labels,
        narrow_ptr,
        narrow_left_ptr,
        narrow_right_ptr,
        rows,
        wide_ptr,
        wide_begin_ptr,
        wide_left_ptr,
        wide_right_ptr,
        wide,
        IS_MAX,
        ROWS,
        WIDTH,
        WIDE,
    )
