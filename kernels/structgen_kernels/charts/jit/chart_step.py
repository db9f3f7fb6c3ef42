"""Kernels of ``structgen_kernels.charts.chart_step``.

A chart is int32 ``[batch, items, boundaries, words]``.  One program computes row ``row`` for ``LANES`` pairs of an item
of a stage and a canvas; no other program writes these rows.  Neighbouring lanes have the same item, and so the same
lists.
"""

import triton
import triton.language as tl

from structgen_kernels.charts.jit.boolean_products import list_ends, product_row


@triton.jit
def pack_columns_kernel(
    values_ptr,  # int8 [batch, rows, columns], 0 or 1
    out_ptr,  # int32 [batch, columns, words]
    rows,
    columns,
    words,
    shift,  # bit b is row b - shift; bits below shift are 1
    COLUMNS: tl.constexpr,
):
    """Pack columns into bits: one program per word of ``COLUMNS`` columns."""
    batch = tl.program_id(2).to(tl.int64)
    word = tl.program_id(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    live = column < columns
    packed = tl.full([COLUMNS], 0, tl.int32)
    for bit in tl.static_range(32):
        row = tl.full([COLUMNS], 0, tl.int32) + (word * 32 + bit - shift)
        inside = live & (row >= 0) & (row < rows)
        value = tl.load(values_ptr + (batch * rows + row) * columns + column, mask=inside, other=0).to(tl.int32)
        packed |= tl.where(row < 0, 1, value) << bit
    tl.store(out_ptr + (batch * columns + column) * words + word, packed, mask=live)


@triton.jit
def _beside_row(
    chart_ptr,  # [LANES] pointers to int32 [items, boundaries, words], a canvas each
    begin_ptr,
    sources_ptr,
    labels_ptr,
    gates_ptr,  # [LANES] pointers to int8 [labels]: the labels that the slot between allows
    item,  # int32 [LANES]
    live,
    row,  # the row of the sources
    boundaries,
    words,
    ENTRIES: tl.constexpr,  # entries of a list per load
    LANES: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Return the OR, [LANES, WORDS], of rows of other items, if the slot between allows the label."""
    word = tl.arange(0, WORDS)[None, :]
    made = tl.full([LANES, WORDS], 0, tl.int32)
    begin, length, longest = list_ends(begin_ptr, item, live)
    for begun in range(0, longest, ENTRIES):
        for entry in tl.static_range(ENTRIES):
            index = begun + entry
            has = live & (index < length)
            label = tl.load(labels_ptr + begin + index, mask=has, other=0)
            source = tl.load(sources_ptr + begin + index, mask=has, other=0).to(tl.int64)
            opens = has & ((label == 0) | (tl.load(gates_ptr + label, mask=has, other=0) != 0))
            place = (chart_ptr + (source * boundaries + row) * words)[:, None] + word
            made |= tl.load(place, mask=opens[:, None] & (word < words), other=0)
    return made


@triton.jit
def _gated_row(
    chart_ptr,
    begin_ptr,
    sources_ptr,
    labels_ptr,
    before_ptr,  # [LANES] pointers to int32 [labels, words]: the boundaries whose previous slot allows a label
    item,
    live,
    row,
    boundaries,
    words,
    ENTRIES: tl.constexpr,  # entries of a list per load
    LANES: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Return the OR, [LANES, WORDS], of rows of other items at boundaries whose previous slot allows the label."""
    word = tl.arange(0, WORDS)[None, :]
    made = tl.full([LANES, WORDS], 0, tl.int32)
    begin, length, longest = list_ends(begin_ptr, item, live)
    for begun in range(0, longest, ENTRIES):
        for entry in tl.static_range(ENTRIES):
            index = begun + entry
            has = live & (index < length)
            label = tl.load(labels_ptr + begin + index, mask=has, other=0)
            source = tl.load(sources_ptr + begin + index, mask=has, other=0).to(tl.int64)
            there = has[:, None] & (word < words)
            found = tl.load((chart_ptr + (source * boundaries + row) * words)[:, None] + word, mask=there, other=0)
            gate = tl.load(
                (before_ptr + label.to(tl.int64) * words)[:, None] + word, mask=there & (label != 0)[:, None], other=-1
            )
            made |= found & gate
    return made


@triton.jit(do_not_specialize=["row"])
def inside_kernel(
    chart_ptr,  # int32 [batch, all items, boundaries, words]
    items_ptr,  # int32 [items], the items of the stage
    flags_ptr,  # int32 [items]
    there_begin_ptr,
    there_sources_ptr,
    there_labels_ptr,
    here_begin_ptr,
    here_sources_ptr,
    here_labels_ptr,
    product_begin_ptr,
    product_lefts_ptr,
    product_rights_ptr,
    admissible_ptr,  # int8 [batch, slots, labels]
    before_ptr,  # int32 [batch, labels, words]
    batch,
    all_items,
    items,
    row,
    slots,
    labels,
    words,
    ENDS: tl.constexpr,
    LEAVES: tl.constexpr,
    ENTRIES: tl.constexpr,
    BITS: tl.constexpr,
    LANES: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Compute the boundaries that derivations reach from one boundary."""
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    live = lane < items * batch
    item = lane // batch
    canvas = (lane % batch).to(tl.int64)
    word = tl.arange(0, WORDS)[None, :]
    boundaries = slots + 1
    chart_ptr += canvas * all_items * boundaries * words  # [LANES]
    before_ptr += canvas * labels * words  # [LANES]
    made = _gated_row(
        chart_ptr, here_begin_ptr, here_sources_ptr, here_labels_ptr, before_ptr, item, live, row, boundaries, words,
        ENTRIES, LANES, WORDS,
    )  # fmt: skip
    flags = tl.load(flags_ptr + item, mask=live, other=0)[:, None]
    ends = ((flags & ENDS) != 0) & (word == row // 32)
    made |= tl.where(ends, 1 << (row % 32), 0)
    if row < slots:
        leaves = ((flags & LEAVES) != 0) & (word == (row + 1) // 32)
        made |= tl.where(leaves, 1 << ((row + 1) % 32), 0)
        gates_ptr = admissible_ptr + (canvas * slots + row) * labels
        made |= _beside_row(
            chart_ptr, there_begin_ptr, there_sources_ptr, there_labels_ptr, gates_ptr, item, live, row + 1, boundaries,
            words, ENTRIES, LANES, WORDS,
        )  # fmt: skip
    begin, length, longest = list_ends(product_begin_ptr, item, live)
    for index in range(longest):
        has = live & (index < length)
        left = tl.load(product_lefts_ptr + begin + index, mask=has, other=0).to(tl.int64)
        right = tl.load(product_rights_ptr + begin + index, mask=has, other=0).to(tl.int64)
        left_ptr = chart_ptr + (left * boundaries + row) * words
        right_ptr = chart_ptr + right * boundaries * words
        made |= product_row(left_ptr, right_ptr, has, row, boundaries, words, BITS, LANES, WORDS)
    number = tl.load(items_ptr + item, mask=live, other=0).to(tl.int64)
    place = (chart_ptr + (number * boundaries + row) * words)[:, None] + word
    tl.store(place, made, mask=live[:, None] & (word < words))


@triton.jit(do_not_specialize=["row"])
def outside_kernel(
    chart_ptr,  # int32 [batch, all items, boundaries, words]: the inside chart
    shares_ptr,  # likewise: the outside chart, the output
    items_ptr,
    flags_ptr,
    there_begin_ptr,
    there_sources_ptr,
    there_labels_ptr,
    here_begin_ptr,
    here_sources_ptr,
    here_labels_ptr,
    into_begin_ptr,
    into_lefts_ptr,
    into_rights_ptr,
    through_begin_ptr,
    through_lefts_ptr,
    through_rights_ptr,
    admissible_ptr,  # int8 [batch, slots, labels]
    before_ptr,  # int32 [batch, labels, words]
    ends_ptr,  # int32 [batch, words]: the boundaries where a parse may end
    batch,
    all_items,
    items,
    row,
    slots,
    labels,
    words,
    STARTS: tl.constexpr,
    ENTRIES: tl.constexpr,
    BITS: tl.constexpr,  # rows per load: a power of two, or all
    LANES: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Keep the derivations from one boundary that are part of a parse of the whole canvas."""
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    live = lane < items * batch
    item = lane // batch
    canvas = (lane % batch).to(tl.int64)
    word = tl.arange(0, WORDS)[None, :]
    boundaries = slots + 1
    chart_ptr += canvas * all_items * boundaries * words  # [LANES]
    shares_ptr += canvas * all_items * boundaries * words  # [LANES]
    before_ptr += canvas * labels * words  # [LANES]
    number = tl.load(items_ptr + item, mask=live, other=0).to(tl.int64)
    inside = live[:, None] & (word < words)
    own_ptr = chart_ptr + (number * boundaries + row) * words
    own = tl.load(own_ptr[:, None] + word, mask=inside, other=0)
    made = _gated_row(
        shares_ptr, here_begin_ptr, here_sources_ptr, here_labels_ptr, before_ptr, item, live, row, boundaries, words,
        ENTRIES, LANES, WORDS,
    )  # fmt: skip
    if row > 0:
        gates_ptr = admissible_ptr + (canvas * slots + row - 1) * labels
        made |= _beside_row(
            shares_ptr, there_begin_ptr, there_sources_ptr, there_labels_ptr, gates_ptr, item, live, row - 1,
            boundaries, words, ENTRIES, LANES, WORDS,
        )  # fmt: skip
    else:
        flags = tl.load(flags_ptr + item, mask=live, other=0)[:, None]
        ends = tl.load((ends_ptr + canvas * words)[:, None] + word, mask=word < words, other=0)
        made |= tl.where((flags & STARTS) != 0, ends, 0)
    none = tl.full([LANES], 0, tl.int32)
    begin, length, longest = list_ends(into_begin_ptr, item, live)
    for index in range(longest):
        has = live & (index < length)
        left = tl.load(into_lefts_ptr + begin + index, mask=has, other=0).to(tl.int64)
        right = tl.load(into_rights_ptr + begin + index, mask=has, other=0).to(tl.int64)
        left_ptr = chart_ptr + left * boundaries * words + row // 32
        right_ptr = shares_ptr + right * boundaries * words
        for begun in range(0, row + 1, BITS):
            for step in tl.static_range(BITS):
                earlier = none + (begun + step)  # [LANES]
                looks = has & (earlier <= row)
                held = tl.load(left_ptr + earlier.to(tl.int64) * words, mask=looks, other=0)
                leads = looks & (((held >> (row % 32)) & 1) != 0)
                place = (right_ptr + earlier.to(tl.int64) * words)[:, None] + word
                made |= tl.load(place, mask=leads[:, None] & (word < words), other=0)
    begin, length, longest = list_ends(through_begin_ptr, item, live)
    for index in range(longest):
        has = live & (index < length)
        left = tl.load(through_lefts_ptr + begin + index, mask=has, other=0).to(tl.int64)
        right = tl.load(through_rights_ptr + begin + index, mask=has, other=0).to(tl.int64)
        there = has[:, None] & (word < words)
        wanted = tl.load((shares_ptr + (left * boundaries + row) * words)[:, None] + word, mask=there, other=0)
        right_ptr = chart_ptr + right * boundaries * words
        for begun in range(row // 32 * 32, boundaries, BITS):
            named = tl.load(own_ptr + begun // 32, mask=has, other=0)
            for step in tl.static_range(BITS):
                middle = none + (begun + step)  # [LANES]
                is_named = has & (((named >> (middle % 32)) & 1) != 0) & (middle < boundaries)
                place = (right_ptr + middle.to(tl.int64) * words)[:, None] + word
                found = tl.load(place, mask=is_named[:, None] & (word < words), other=0) & wanted
                meets = tl.max((found != 0).to(tl.int32), axis=1)
                made |= tl.where(word == begun // 32, (meets << (middle % 32))[:, None], 0)
    place = (shares_ptr + (number * boundaries + row) * words)[:, None] + word
    tl.store(place, made & own, mask=inside)


@triton.jit
def across_kernel(
    chart_ptr,
    shares_ptr,
    begin_ptr,  # int32 [labels + 1]
    arrivals_ptr,
    cells_ptr,
    across_ptr,  # int32 [batch, words, labels, words]
    batch,
    all_items,
    slots,
    labels,
    words,
    BITS: tl.constexpr,
    LANES: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Compute the boundaries where both items of a pair of a label end, for derivations from 32 boundaries."""
    block = tl.program_id(1)
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    live = lane < labels * batch
    label = lane // batch
    canvas = (lane % batch).to(tl.int64)
    word = tl.arange(0, WORDS)[None, :]
    boundaries = slots + 1
    chart_ptr += canvas * all_items * boundaries * words  # [LANES]
    shares_ptr += canvas * all_items * boundaries * words  # [LANES]
    made = tl.full([LANES, WORDS], 0, tl.int32)
    begin, length, longest = list_ends(begin_ptr, label, live)
    for index in range(longest):
        has = live & (index < length)
        arrival = tl.load(arrivals_ptr + begin + index, mask=has, other=0).to(tl.int64)
        cell = tl.load(cells_ptr + begin + index, mask=has, other=0).to(tl.int64)
        for first in range(block * 32, tl.minimum(block * 32 + 32, boundaries), BITS):
            for bit in tl.static_range(BITS):
                row = tl.full([LANES], 0, tl.int32) + (first + bit)
                there = (has & (row < boundaries))[:, None] & (word < words)
                one = tl.load((shares_ptr + (arrival * boundaries + row) * words)[:, None] + word, mask=there, other=0)
                two = tl.load((chart_ptr + (cell * boundaries + row) * words)[:, None] + word, mask=there, other=0)
                made |= one & two
    place = across_ptr + (((canvas * words + block) * labels + label) * words)[:, None] + word
    tl.store(place, made, mask=live[:, None] & (word < words))


@triton.jit
def allowed_kernel(
    chart_ptr,
    shares_ptr,
    begin_ptr,  # int32 [labels + 1]
    firsts_ptr,
    seconds_ptr,
    across_ptr,  # int32 [batch, words, labels, words]
    admissible_ptr,  # int8 [batch, slots, labels]
    allowed_ptr,  # int8 [batch, slots, labels]
    batch,
    all_items,
    slots,
    labels,
    words,
    LANES: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Compute which labels a slot allows: one program per slot and ``LANES`` pairs of a label and a canvas."""
    slot = tl.program_id(1)
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    live = lane < labels * batch
    label = lane // batch
    canvas = (lane % batch).to(tl.int64)
    word = tl.arange(0, WORDS)[None, :]
    boundaries = slots + 1
    chart_ptr += canvas * all_items * boundaries * words  # [LANES]
    shares_ptr += canvas * all_items * boundaries * words  # [LANES]
    found = tl.full([LANES, WORDS], 0, tl.int32)
    begin, length, longest = list_ends(begin_ptr, label, live)
    for index in range(longest):
        has = live & (index < length)
        first = tl.load(firsts_ptr + begin + index, mask=has, other=0).to(tl.int64)
        second = tl.load(seconds_ptr + begin + index, mask=has, other=0).to(tl.int64)
        there = has[:, None] & (word < words)
        one = tl.load((shares_ptr + (first * boundaries + slot) * words)[:, None] + word, mask=there, other=0)
        two = tl.load((chart_ptr + (second * boundaries + slot + 1) * words)[:, None] + word, mask=there, other=0)
        found |= one & two
    # Derivations that end at the boundary after the slot.
    for block in range(words):
        place = across_ptr + ((canvas * words + block) * labels + label) * words + (slot + 1) // 32
        ended = (tl.load(place, mask=live, other=0) >> ((slot + 1) % 32)) & 1
        found |= tl.where(word == 0, ended[:, None], 0)
    place = (canvas * slots + slot) * labels + label
    may = tl.load(admissible_ptr + place, mask=live, other=0) != 0
    holds = may & (tl.max((found != 0).to(tl.int32), axis=1) != 0)
    tl.store(allowed_ptr + place, holds.to(tl.int8), mask=live)


@triton.jit
def ends_kernel(
    chart_ptr,
    wanted_ptr,  # int32 [batch, words]
    ends_ptr,  # int8 [batch, boundaries]
    completable_ptr,  # int8 [batch]
    all_items,
    root,
    slots,
    words,
    WORDS: tl.constexpr,
):
    """Compute where parses end, and whether there is one: one program per canvas."""
    batch = tl.program_id(0).to(tl.int64)
    word = tl.arange(0, WORDS)
    live = word < words
    boundaries = slots + 1
    found = tl.load(chart_ptr + (batch * all_items + root) * boundaries * words + word, mask=live, other=0)
    found &= tl.load(wanted_ptr + batch * words + word, mask=live, other=0)
    tl.store(completable_ptr + batch, tl.max((found != 0).to(tl.int32), axis=0).to(tl.int8))
    bits = (found[:, None] >> tl.arange(0, 32)[None, :]) & 1
    column = word[:, None] * 32 + tl.arange(0, 32)[None, :]
    tl.store(ends_ptr + batch * boundaries + column, bits.to(tl.int8), mask=column < boundaries)
