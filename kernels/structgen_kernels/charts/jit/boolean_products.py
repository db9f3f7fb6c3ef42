"""The kernel of ``structgen_kernels.charts.boolean_products``, and functions that the chart kernels share."""

import triton
import triton.language as tl


@triton.jit
def list_ends(begin_ptr, item, live):
    """Return the start and the length of the list of each item [LANES], and the largest length."""
    begin = tl.load(begin_ptr + item, mask=live, other=0)
    length = tl.load(begin_ptr + item + 1, mask=live, other=0) - begin
    return begin, length, tl.max(length, axis=0)


@triton.jit
def product_row(
    left_ptr,  # int32 [LANES] pointers to rows of left matrices
    right_ptr,  # int32 [LANES] pointers to right matrices, [inner, words]
    live,  # int1 [LANES]
    first,  # the first row of the right matrices to read
    inner,
    words,
    BITS: tl.constexpr,
    LANES: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Return rows [LANES, WORDS] of products: the OR of the right rows whose bits are set in a left row."""
    word = tl.arange(0, WORDS)[None, :]
    none = tl.full([LANES], 0, tl.int32)
    made = tl.full([LANES, WORDS], 0, tl.int32)
    for block in range(first // 32, (inner + 31) // 32):
        named = tl.load(left_ptr + block, mask=live, other=0)
        for bit in tl.static_range(BITS):
            row = none + (block * 32 + bit)  # [LANES]
            is_named = live & (((named >> bit) & 1) != 0) & (row >= first) & (row < inner)
            made |= tl.load(
                (right_ptr + row.to(tl.int64) * words)[:, None] + word, mask=is_named[:, None] & (word < words), other=0
            )
    return made


@triton.jit
def boolean_products_kernel(
    left_ptr,  # int32 [left items, rows, left_words]
    right_ptr,  # int32 [right items, inner, words]
    begin_ptr,  # int32 [items + 1]
    lefts_ptr,  # int32 [pairs]
    rights_ptr,  # int32 [pairs]
    out_ptr,  # int32 [items, rows, words]
    items,
    rows,
    inner,
    left_words,
    words,
    SPAN: tl.constexpr,
    BITS: tl.constexpr,
    LANES: tl.constexpr,
    WORDS: tl.constexpr,
):
    """One program per row of ``LANES`` outputs; no other program writes these rows."""
    item = tl.program_id(0) * LANES + tl.arange(0, LANES)
    row = tl.program_id(1)
    live = item < items
    word = tl.arange(0, WORDS)[None, :]
    begin, length, longest = list_ends(begin_ptr, item, live)
    made = tl.full([LANES, WORDS], 0, tl.int32)
    first = row if SPAN else row * 0
    for index in range(longest):
        has = live & (index < length)
        left = tl.load(lefts_ptr + begin + index, mask=has, other=0).to(tl.int64)
        right = tl.load(rights_ptr + begin + index, mask=has, other=0).to(tl.int64)
        made |= product_row(
            left_ptr + (left * rows + row) * left_words,
            right_ptr + right * inner * words,
            has,
            first,
            inner,
            words,
            BITS,
            LANES,
            WORDS,
        )
    place = out_ptr + (item[:, None].to(tl.int64) * rows + row) * words + word
    inside = live[:, None] & (word < words)
    tl.store(place, tl.load(place, mask=inside, other=0) | made, mask=inside)
