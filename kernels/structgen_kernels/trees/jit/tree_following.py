"""The kernel of ``structgen_kernels.trees.tree_following``."""

import triton
import triton.language as tl

from structgen_kernels.trees.jit.tree_children import clear_path, find_child


@triton.jit
def follow_tree_kernel(
    first_ptr,  # int32 [requests + 1]
    parents_ptr,  # int32 [nodes]
    drafts_ptr,  # int32 [nodes]
    chosen_ptr,  # int32 [positions]
    chosen_status_ptr,  # int32 [positions] or None
    nodes_ptr,  # int32 [nodes]
    accepted_ptr,  # bool [nodes]
    counts_ptr,  # int32 [requests]
    tokens_ptr,  # int32 [requests]
    status_ptr,  # int32 [requests]
    BLOCK: tl.constexpr,
):
    """One program per request."""
    request = tl.program_id(0)
    start = tl.load(first_ptr + request).to(tl.int64)
    end = tl.load(first_ptr + request + 1) - tl.load(first_ptr + request)
    clear_path(nodes_ptr + start, accepted_ptr + start, end, BLOCK)
    root = chosen_ptr + start + request + 1
    node = end * 0 - 1
    count = end * 0
    token = tl.load(root + node)
    child = find_child(parents_ptr + start, drafts_ptr + start, node + 1, end, node, token, False, BLOCK)
    while child < end:
        tl.store(nodes_ptr + start + count, child)
        tl.store(accepted_ptr + start + child, 1)
        count += 1
        node = child
        token = tl.load(root + node)
        child = find_child(parents_ptr + start, drafts_ptr + start, node + 1, end, node, token, False, BLOCK)
    tl.store(counts_ptr + request, count)
    tl.store(tokens_ptr + request, token)
    if chosen_status_ptr is None:
        tl.store(status_ptr + request, tl.where(token >= 0, 0, 1))  # CHOSEN, EMPTY
    else:
        tl.store(status_ptr + request, tl.load(chosen_status_ptr + start + request + 1 + node))
