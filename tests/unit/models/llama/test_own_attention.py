"""Native attention of rows to the entries of their own sequence, against its definition in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from structgen_kernels import _native

LAYERS, HEADS, GROUPS, WIDTH = 3, 2, 3, 16


def cache(random: np.random.Generator, capacity: int, dtype: Any) -> Any:
    """Entries of some layers."""
    return random.normal(size=(LAYERS, 2, HEADS, capacity, WIDTH)).astype(np.float32).astype(dtype)


def rows_of(random: np.random.Generator, count: int) -> list[Any]:
    """Queries, keys and values; those of all heads lie together, as a product of three matrices has them."""
    together = random.normal(size=(count, HEADS * (GROUPS + 2), WIDTH)).astype(np.float32)
    queries, rest = together[:, : HEADS * GROUPS], together[:, HEADS * GROUPS :]
    return [queries, rest[:, :HEADS], rest[:, HEADS:]]


def attended(parts: Any, layer: int, queries: Any, keys: Any, values: Any) -> tuple[Any, Any]:
    """Output and log-sum-exps of the native function."""
    output = np.full((len(queries), HEADS * GROUPS, WIDTH), np.nan)
    log_sums = np.full((len(queries), HEADS * GROUPS), np.nan)
    _native.OwnAttention(HEADS, GROUPS, parts).attend(layer, queries, keys, values, output, log_sums)
    return output, log_sums


def expected(part: Any, layer: int, queries: Any, keys: Any, values: Any) -> tuple[Any, Any]:
    """By the definition, in float64."""
    first, count, spans, visible = part
    news = [each[first : first + count].astype(np.float64).transpose(1, 0, 2) for each in (keys, values)]
    held = [
        np.concatenate(
            [
                *(
                    entries[layer, kind, :, start : start + length].astype(np.float64)
                    for entries, start, length in spans
                ),
                new,
            ],
            axis=1,
        )
        for kind, new in enumerate(news)
    ]
    past = held[0].shape[1] - count
    grouped = queries[first : first + count].astype(np.float64).reshape(count, HEADS, GROUPS, WIDTH)
    scores = np.einsum("rhgd,hed->rhge", grouped, held[0]) / np.sqrt(WIDTH)
    seen = np.tri(count, dtype=bool) if visible is None else visible
    scores[..., past:][~np.broadcast_to(seen[:, None, None], scores[..., past:].shape)] = -np.inf
    largest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - largest)
    log_sums = largest[..., 0] + np.log(weights.sum(-1))
    output = np.einsum("rhge,hed->rhgd", weights / weights.sum(-1, keepdims=True), held[1])
    return output.reshape(count, -1, WIDTH), log_sums.reshape(count, -1)


def parts_of(random: np.random.Generator, dtype: Any) -> list[Any]:
    """Sequences of several kinds: short, of several spans, within a segment, with a tree, without a past."""
    one, two, three, four, five = (cache(random, capacity, dtype) for capacity in (40, 9, 70, 300, 8))
    tree = np.tri(5, dtype=bool)
    tree[3, 2] = tree[4, 3] = tree[4, 2] = False
    return [
        (0, 1, [(one, 0, 39)], None),
        (1, 3, [(two, 2, 7), (three, 10, 57)], None),
        (4, 5, [(four, 0, 256)], tree),
        (9, 8, [(five, 0, 0)], None),
    ]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("layer", range(LAYERS))
def test_results_are_those_of_the_definition(dtype: Any, layer: int) -> None:
    """To the rounding of float64; the new keys and values are in the caches afterwards, and nothing else is."""
    random = np.random.default_rng(layer)
    parts, rows = parts_of(random, dtype), rows_of(random, 17)
    wanted = [expected(part, layer, *rows) for part in parts]
    before = [part[2][-1][0].copy() for part in parts]
    output, log_sums = attended(parts, layer, *rows)
    for part, (exact, exact_sums), old in zip(parts, wanted, before, strict=True):
        first, count, (*_, (entries, start, length)), _ = part
        np.testing.assert_allclose(output[first : first + count], exact, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(log_sums[first : first + count], exact_sums, rtol=1e-12, atol=1e-14)
        at = slice(start + length, start + length + count)
        for kind in range(2):
            old[layer, kind, :, at] = rows[1 + kind][first : first + count].transpose(1, 0, 2)
        np.testing.assert_array_equal(entries, old)


def test_a_row_does_not_depend_on_others() -> None:
    """Neither on other sequences nor on how many tokens come at a time, to the last bit."""
    random = np.random.default_rng(5)
    parts, rows = parts_of(random, np.float64), rows_of(random, 17)
    output, log_sums = attended(parts, 1, *rows)
    for part in parts:
        first, count, spans, visible = part
        alone = [each[first : first + count] for each in rows]
        mine = attended([(0, count, spans, visible)], 1, *alone)
        np.testing.assert_array_equal(mine[0], output[first : first + count])
        np.testing.assert_array_equal(mine[1], log_sums[first : first + count])
        if visible is None:
            (*others, (entries, start, length)) = spans
            for row in range(count):
                step = attended(
                    [(0, 1, [*others, (entries, start, length + row)], None)],
                    1,
                    *(each[row : row + 1] for each in alone),
                )
                np.testing.assert_array_equal(step[0][0], output[first + row])


def test_what_does_not_fit_is_refused() -> None:
    """Nothing outside the entries is read or written."""
    random = np.random.default_rng(7)
    entries, rows = cache(random, 10, np.float32), rows_of(random, 2)
    good = (0, 2, [(entries, 0, 8)], None)
    hidden = np.zeros((2, 2), dtype=bool)
    for parts in (
        [],
        [(0, 0, [(entries, 0, 8)], None)],
        [(0, 2, [], None)],
        [(0, 2, [(entries, 0, 9)], None)],
        [(0, 2, [(entries, 11, 0)], None)],
        [(0, 2, [(entries, 2**64 - 1, 2)], None)],
        [(2**64 - 1, 2, [(entries, 0, 8)], None)],
        [(0, 2, [(entries.astype(np.int64), 0, 8)], None)],
        [good, (2, 1, [(cache(random, 9, np.float64), 0, 1)], None)],
        [(0, 2, [(entries, 0, 8)], hidden)],
        [(0, 2, [(entries, 0, 8)], np.eye(3, dtype=bool))],
    ):
        with pytest.raises(ValueError, match="OwnAttention"):
            _native.OwnAttention(HEADS, GROUPS, parts)
    made = _native.OwnAttention(HEADS, GROUPS, [good])
    results = np.empty((2, HEADS * GROUPS, WIDTH)), np.empty((2, HEADS * GROUPS))
    for layer, (queries, keys, values), (output, log_sums) in (
        (LAYERS, rows, results),
        (0, [each[:1] for each in rows], results),
        (0, [rows[0], rows[1][:, :1], rows[2]], results),
        (0, [rows[0][..., ::-1], *rows[1:]], results),
        (0, rows, (results[0][:1], results[1])),
    ):
        with pytest.raises(ValueError, match="OwnAttention"):
            made.attend(layer, queries, keys, values, output, log_sums)
    with pytest.raises(TypeError):
        made.attend(0, rows[0].astype(np.float64), *rows[1:], *results)
