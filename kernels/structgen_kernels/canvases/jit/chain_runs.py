"""The kernel of ``structgen_kernels.canvases.chain_runs``."""

import triton
import triton.language as tl

from structgen_kernels.jit.noise import exponential, random_words


@triton.jit(do_not_specialize=["slots", "states"])
def chain_runs_kernel(
    weights_ptr,  # [batch, slots, labels]
    weights_canvas_stride,
    weights_slot_stride,
    slots,
    messages_ptr,  # float64 [batch, slots + 1, states]
    states,
    begin_ptr,  # int32 [states + 1]
    target_ptr,  # int32 [edges]
    label_ptr,  # int32 [edges]
    seeds_ptr,  # int64 [batch * slots]
    offsets_ptr,  # int64 [batch * slots]
    edges_ptr,  # int32 [batch, slots]
    labels_ptr,  # int32 [batch, slots]
    totals_ptr,  # float64 [batch]
    status_ptr,  # int32 [batch]
    IMPOSSIBLE: tl.constexpr,
    IS_DRAW: tl.constexpr,
    STREAM: tl.constexpr,
    BLOCK: tl.constexpr,  # edges of a state per block
):
    """One program per canvas, which walks through its slots from state 0."""
    canvas = tl.program_id(0).to(tl.int64)
    weights_ptr += canvas * weights_canvas_stride
    messages_ptr += canvas * (slots + 1) * states
    total = tl.load(messages_ptr)
    tl.store(totals_ptr + canvas, total)
    tl.store(status_ptr + canvas, tl.where(total > float("-inf"), 0, IMPOSSIBLE))
    state = canvas.to(tl.int32) * 0
    for slot in range(slots):
        place = canvas * slots + slot
        base = tl.load(messages_ptr + state)
        base = tl.where(base > float("-inf"), base, 0.0)
        messages_ptr += states
        begin = tl.load(begin_ptr + state)
        end = tl.where(total > float("-inf"), tl.load(begin_ptr + state + 1), begin)
        best = tl.full([], float("-inf"), tl.float64)
        taken = state * 0 - 1
        for first in range(begin, end, BLOCK):
            edge = first + tl.arange(0, BLOCK)
            live = edge < end
            target = tl.load(target_ptr + edge, mask=live, other=0)
            label = tl.load(label_ptr + edge, mask=live, other=0)
            weight = tl.load(weights_ptr + label, mask=live, other=float("-inf")).to(tl.float64)
            weight = tl.where(weight < float("inf"), weight, float("-inf"))
            scores = weight + tl.load(messages_ptr + target, mask=live, other=float("-inf"))  # [BLOCK]
            if IS_DRAW:
                high, low, _, _ = random_words(tl.load(seeds_ptr + place), tl.load(offsets_ptr + place), edge, STREAM)
                # Gumbel-max: the share of this edge in its state, divided by an exponential variate.
                scores = scores - base - tl.log(exponential(high, low)).to(tl.float64)
            largest, at = tl.max(scores, 0, return_indices=True, return_indices_tie_break_left=True)
            taken = tl.where(largest > best, first + at, taken)
            best = tl.maximum(best, largest)
        is_taken = taken >= 0
        tl.store(edges_ptr + place, taken)
        tl.store(labels_ptr + place, tl.load(label_ptr + taken, mask=is_taken, other=-1))
        state = tl.load(target_ptr + taken, mask=is_taken, other=0)
        weights_ptr += weights_slot_stride
