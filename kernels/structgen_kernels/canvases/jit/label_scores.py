"""The kernel of ``structgen_kernels.canvases.label_scores``."""

import triton
import triton.language as tl


@triton.jit
def label_scores_kernel(
    scores_ptr,  # float32 [rows, classes]
    scores_stride,
    begin_ptr,  # int32 [labels + 1]
    held_ptr,  # int32
    labels,
    out_ptr,  # float32 [rows, labels]
    out_stride,
    IS_MAX: tl.constexpr,
    LABELS: tl.constexpr,
    HELD: tl.constexpr,
):
    """One program per row and LABELS labels, HELD classes per label and block."""
    row = tl.program_id(0).to(tl.int64)
    label = tl.program_id(1) * LABELS + tl.arange(0, LABELS)
    is_label = label < labels
    first = tl.load(begin_ptr + label, mask=is_label, other=0)
    count = tl.load(begin_ptr + label + 1, mask=is_label, other=0) - first
    largest = tl.full([LABELS], float("-inf"), tl.float32)
    sums = tl.zeros([LABELS], tl.float32)
    for begin in range(0, tl.max(count, axis=0), HELD):
        at = begin + tl.arange(0, HELD)[None, :]
        is_there = at < count[:, None]  # [LABELS, HELD]
        of = tl.load(held_ptr + first[:, None] + at, mask=is_there, other=0)
        scores = tl.load(scores_ptr + row * scores_stride + of, mask=is_there, other=float("-inf"))
        raised = tl.maximum(largest, tl.max(scores, axis=1))
        if not IS_MAX:
            base = tl.where(raised > float("-inf"), raised, 0.0)
            sums = sums * tl.exp(largest - base) + tl.sum(tl.exp(scores - base[:, None]), axis=1)
        largest = raised
    if not IS_MAX:
        largest += tl.log(tl.where(sums > 0, sums, 1.0))
    tl.store(out_ptr + row * out_stride + label, largest, mask=is_label)
