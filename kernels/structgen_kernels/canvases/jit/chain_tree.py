"""The kernels of ``structgen_kernels.canvases.chain_tree``: products of matrices of logarithms."""

import triton
import triton.language as tl


@triton.jit
def _column(left_ptr, left_row_stride, left_column_stride, rows, row, k):
    """Load one column of a matrix, [N]; minus infinity outside the matrix."""
    return tl.load(left_ptr + row * left_row_stride + k * left_column_stride, mask=row < rows, other=float("-inf"))


@triton.jit
def _with_term(bound, total, term):
    """Add a term to ``exp(bound) * total``, with one exponential and without NaN from differences of infinities."""
    larger = tl.maximum(bound, term)
    share = tl.exp(tl.minimum(bound, term) - tl.where(larger > float("-inf"), larger, 0.0))
    return larger, tl.where(term > bound, total * share + 1.0, total + share)


@triton.jit(do_not_specialize=["nodes", "rows", "inner", "columns"])
def max_matmul_kernel(
    left_ptr,  # [batch, nodes, rows, inner], of any strides
    left_batch_stride,
    left_node_stride,
    left_row_stride,
    left_column_stride,
    right_ptr,  # [batch, nodes, inner, columns], of any strides
    right_batch_stride,
    right_node_stride,
    right_row_stride,
    right_column_stride,
    out_ptr,  # [batch, nodes, rows, columns], contiguous
    nodes,
    rows,
    inner,
    columns,
    TILE: tl.constexpr,
):
    """One program per tile of a product: ``out[i, j] = max_k left[i, k] + right[k, j]``."""
    product = tl.program_id(0).to(tl.int64)
    left_ptr += product // nodes * left_batch_stride + product % nodes * left_node_stride
    right_ptr += product // nodes * right_batch_stride + product % nodes * right_node_stride
    row = (tl.program_id(1) * TILE + tl.arange(0, TILE)).to(tl.int64)
    column = (tl.program_id(2) * TILE + tl.arange(0, TILE)).to(tl.int64)
    largest = tl.full([TILE, TILE], float("-inf"), out_ptr.dtype.element_ty)
    for k in range(inner):
        left = _column(left_ptr, left_row_stride, left_column_stride, rows, row, k)
        right = _column(right_ptr, right_column_stride, right_row_stride, columns, column, k)
        largest = tl.maximum(largest, left[:, None] + right[None, :])
    place = (product * rows + row[:, None]) * columns + column[None, :]
    tl.store(out_ptr + place, largest, mask=(row < rows)[:, None] & (column < columns)[None, :])


@triton.jit(do_not_specialize=["nodes", "rows", "inner", "columns"])
def log_matmul_kernel(
    left_ptr,  # [batch, nodes, rows, inner], of any strides
    left_batch_stride,
    left_node_stride,
    left_row_stride,
    left_column_stride,
    right_ptr,  # [batch, nodes, inner, columns], of any strides
    right_batch_stride,
    right_node_stride,
    right_row_stride,
    right_column_stride,
    out_ptr,  # [batch, nodes, rows, columns], contiguous
    nodes,
    rows,
    inner,
    columns,
    IS_SCALED: tl.constexpr,  # whether to try matrix products of scaled exponentials first; float32 only
    SURE: tl.constexpr,  # the least result of such a product for which underflowed terms are negligible
    TILE: tl.constexpr,
    INNER: tl.constexpr,
):
    """One program per tile of a product: ``out[i, j] = log sum_k exp(left[i, k] + right[k, j])``.

    For each number, a tile keeps an upper bound of the terms so far, and the sum of the terms divided by the
    exponential of the bound.  Terms are added in blocks of ``INNER``.  A block is one ordinary matrix product of
    exponentials, with rows and columns scaled by their maxima.  If a result of the block is too small, terms may have
    underflowed, and the block is added term by term.
    """
    product = tl.program_id(0).to(tl.int64)
    left_ptr += product // nodes * left_batch_stride + product % nodes * left_node_stride
    right_ptr += product // nodes * right_batch_stride + product % nodes * right_node_stride
    row = (tl.program_id(1) * TILE + tl.arange(0, TILE)).to(tl.int64)
    column = (tl.program_id(2) * TILE + tl.arange(0, TILE)).to(tl.int64)
    none: tl.constexpr = float("-inf")
    bound = tl.full([TILE, TILE], none, out_ptr.dtype.element_ty)
    total = tl.full([TILE, TILE], 0.0, out_ptr.dtype.element_ty)
    if IS_SCALED:
        for first in range(0, inner, INNER):
            k = first + tl.arange(0, INNER).to(tl.int64)
            left = tl.load(
                left_ptr + row[:, None] * left_row_stride + k[None, :] * left_column_stride,
                mask=(row < rows)[:, None] & (k < inner)[None, :],
                other=none,
            )  # [TILE, INNER]
            right = tl.load(
                right_ptr + k[:, None] * right_row_stride + column[None, :] * right_column_stride,
                mask=(k < inner)[:, None] & (column < columns)[None, :],
                other=none,
            )  # [INNER, TILE]
            by_row, by_column = tl.max(left, 1), tl.max(right, 0)
            by_row = tl.where(by_row > none, by_row, 0.0)
            by_column = tl.where(by_column > none, by_column, 0.0)
            terms = tl.dot(
                tl.exp(left - by_row[:, None]), tl.exp(right - by_column[None, :]), input_precision="ieee"
            )  # [TILE, TILE]
            is_some = tl.dot((left > none).to(tl.float16), (right > none).to(tl.float16)) > 0.5
            if tl.max(tl.max((is_some & (terms < SURE)).to(tl.int32), 1), 0) > 0:
                for each in range(first, tl.minimum(first + INNER, inner)):
                    one = _column(left_ptr, left_row_stride, left_column_stride, rows, row, each)
                    other = _column(right_ptr, right_column_stride, right_row_stride, columns, column, each)
                    bound, total = _with_term(bound, total, one[:, None] + other[None, :])
            else:
                scale = by_row[:, None] + by_column[None, :]
                larger = tl.maximum(bound, tl.where(is_some, scale, none))
                base = tl.where(larger > none, larger, 0.0)
                share = tl.exp(tl.where(is_some, scale - base, none))
                total = total * tl.exp(bound - base) + terms * share
                bound = larger
    else:
        for each in range(inner):
            one = _column(left_ptr, left_row_stride, left_column_stride, rows, row, each)
            other = _column(right_ptr, right_column_stride, right_row_stride, columns, column, each)
            bound, total = _with_term(bound, total, one[:, None] + other[None, :])
    made = tl.where(bound > none, bound + tl.log(tl.where(bound > none, total, 1.0)), none)
    place = (product * rows + row[:, None]) * columns + column[None, :]
    tl.store(out_ptr + place, made, mask=(row < rows)[:, None] & (column < columns)[None, :])
