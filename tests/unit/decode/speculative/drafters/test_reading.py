"""Rows restricted to allowed tokens, against a scan of every logit."""

from __future__ import annotations

import numpy as np
import pytest
from handmade_passes import LETTERS, allowed, compiled, ran, tree_of_texts

from structgen.decode import Context
from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree
from structgen.decode.speculative.drafter import Verified, tree_masks
from structgen.decode.speculative.drafters.likely_tokens import ngram_top_tokens, node_top_tokens
from structgen.engine import Vocabulary
from structgen.models.toy.hash import HashModel


def best(row: np.ndarray, among: set[int], count: int) -> list[int]:
    return sorted(among, key=lambda token: (-row[token], token))[:count]


@pytest.mark.parametrize("seed", range(10))
def test_they_are_the_most_probable_tokens_that_are_allowed(seed: int) -> None:
    constraint = compiled("([abc]+,|[def]+[.])*")
    context = Context(HashModel(LETTERS, seed=seed), [1])
    tree = tree_of_texts(LETTERS, ["abc", "ab,d", "de.", "f"])
    verified = ran(context, tree)
    matchers = {ROOT: constraint.matcher()}
    for node in range(len(tree)):
        matchers[node] = matchers[tree.parents[node]].fork()
        assert matchers[node].accept(tree.tokens[node])
    for count in (1, 2, 4, 9):
        masked = {each.node: each for each in node_top_tokens(verified, count, constraint.matcher())}
        assert sorted(masked) == sorted(matchers)
        for node, each in masked.items():
            row = verified.rows[node + 1]
            expected = best(row, allowed(matchers[node]), count)
            assert each.tokens == expected
            assert each.logits == [row[token] for token in expected]
        for each in node_top_tokens(verified, count):
            assert each.tokens == best(verified.rows[each.node + 1], set(range(9)), count)


def test_few_of_many_are_found() -> None:
    """They are found among the 16 most probable tokens, or twice as many as are wanted, or else by a scan."""
    vocabulary = Vocabulary([b"", *(bytes([letter]) for letter in range(60, 160))], eos=[0])
    rows = -np.arange(101, dtype=np.float32)[None]
    for pattern, count, expected in (
        ("[P-T]", 3, [21, 22, 23]),  # bytes 80 to 84
        ("[?@P-T]", 3, [4, 5]),  # bytes 63 and 64 too
        ("[?@P-T]", 12, [4, 5, 21, 22, 23]),  # the token of byte 83 is the 25th
        ("[?@A]", 2, [4, 5]),
    ):
        found = node_top_tokens(Verified(1, DraftTree(), rows), count, compiled(pattern, vocabulary).matcher())
        assert [each.tokens for each in found] == [expected]


def test_rows_that_were_not_run_and_forced_places_are_left_out() -> None:
    tree = DraftTree()
    first = tree.add(ROOT, 1)
    forced = tree.add(first, 2, source=FORCED)
    last = tree.add(forced, 3)
    rows = np.zeros((4, 9), dtype=np.float32)
    assert [each.node for each in node_top_tokens(Verified(1, tree, rows), 1)] == [ROOT, forced, last]
    rows[last + 1] = np.nan
    assert [each.node for each in node_top_tokens(Verified(1, tree, rows), 1)] == [ROOT, forced]


def test_what_has_no_probability_is_no_candidate() -> None:
    rows = np.full((1, 9), -np.inf, dtype=np.float32)
    rows[0, 4] = 1
    found = node_top_tokens(Verified(1, DraftTree(), rows), 3)
    assert [each.tokens for each in found] == [[4]]


def test_distributions_come_with_the_tokens_before_them() -> None:
    tree = tree_of_texts(LETTERS, ["ab", "c"])
    rows = np.arange(4 * 9, dtype=np.float32).reshape(4, 9)
    distributions = ngram_top_tokens(Verified(2, tree, rows), [7, 8], 3, 2)
    assert [(before, tokens) for before, tokens, _ in distributions] == [
        ((7, 8), [8, 7]),
        ((7, 8, 1), [8, 7]),
        ((8, 1, 2), [8, 7]),
        ((7, 8, 3), [8, 7]),
    ]


def test_masks_end_where_the_grammar_does() -> None:
    tree = tree_of_texts(LETTERS, ["abc", "b"])
    masks = tree_masks(tree, compiled("ab").matcher())
    assert sorted(masks) == [ROOT, 0, 1]
    assert [int(masks[node][0]) for node in (ROOT, 0, 1)] == [1 << 1, 1 << 2, 1 << 0]
