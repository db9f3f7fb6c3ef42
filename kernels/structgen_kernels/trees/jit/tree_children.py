"""The children of a node of a draft tree, in the layout of ``structgen_kernels.trees.draft_forest``."""

import triton
import triton.language as tl


@triton.jit
def find_child(
    parents_ptr,  # int32 [end], of this request
    tokens_ptr,  # int32 [end]
    begin,
    end,
    node,
    token,
    ANY: tl.constexpr,  # whether any token matches
    BLOCK: tl.constexpr,
):
    """Return the first child of a node from ``begin`` on that has the token; ``end`` if there is none."""
    found = end
    at = begin
    while (at < end) & (found == end):
        each = at + tl.arange(0, BLOCK)
        inside = each < end
        fits = inside & (tl.load(parents_ptr + each, mask=inside, other=-2) == node)
        if not ANY:
            fits &= (tl.load(tokens_ptr + each, mask=inside, other=-1) == token) & (token >= 0)
        found = tl.minimum(found, tl.min(tl.where(fits, each, end), 0))
        at += BLOCK
    return found


@triton.jit
def clear_path(nodes_ptr, accepted_ptr, end, BLOCK: tl.constexpr):
    """Write -1 and False for all nodes [end] of a request."""
    for at in range(0, end, BLOCK):
        each = at + tl.arange(0, BLOCK)
        tl.store(nodes_ptr + each, -1, mask=each < end)
        tl.store(accepted_ptr + each, 0, mask=each < end)
    tl.debug_barrier()  # other threads of the program write the same addresses next
