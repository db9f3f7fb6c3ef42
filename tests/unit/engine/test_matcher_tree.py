"""Masks along trees of tokens: one call agrees with forks that accept the tokens one by one."""

from __future__ import annotations

import random
import threading
import time

import numpy as np
import pytest
from grammar_strategies import json_terms, regular_terms, rule_terms, vocabularies
from hypothesis import given, settings, strategies as st
from machine_load import slowness
from random_token_trees import masks_along, random_tree

import structgen as sg
from structgen.engine import Matcher, Vocabulary, compile, fill_mask_trees
from structgen.errors import LimitExceeded, UnsatisfiableGrammar, VocabularyError
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import (
    ANY_CHAR,
    CharClass,
    Grammar,
    Reference,
    Rules,
    SpecialToken,
    choice,
    literal,
    repeat,
    sequence,
)
from structgen.models.protocol.tree import TokenTree

TOOL, EOS, STOP = 256, 257, 258
PAIRS = [b"ab", b"ba", b'",', b'":', b"[[", b"]]", b'["', b"1,", b",1", b'":{"', "é".encode()[:1] + b"x", b"\xa9a"]
TEXT = Vocabulary(
    [*(bytes([value]) for value in range(256)), b"", b"", b"", *PAIRS],
    eos=[EOS, STOP],
    special={TOOL: "<tool>"},
    size=290,
)

LISTS = Rules({"list": sequence("[", repeat(Reference("list"), 0, 3), "]")}, Reference("list"))
GRAMMARS = {
    "regex": sg.regex("[ab]{2,6}(1,?)*"),
    "recursive": LISTS,
    "schema": sg.json_schema(
        {"type": "object", "properties": {"ab": {"type": "string"}, "ba": {"type": "integer"}}, "required": ["ab"]}
    ),
    "uniqueItems": sg.json_schema({"type": "array", "items": {"enum": [1, 11, "a", "ab"]}, "uniqueItems": True}),
    "unique texts": sg.json_schema({"type": "array", "items": {"type": "string"}, "uniqueItems": True}),
    "host names": sg.json_schema({"type": "string", "format": "idn-hostname"}),
    "characters": sequence(repeat(CharClass([(0xE9, 0xE9), (0x1F600, 0x1F64F), (0x61, 0x62)]), 0, 6), "x"),
    "special tokens": repeat(choice(sequence(SpecialToken("<tool>"), "ab"), literal("ba")), 0, 4),
    "anything": repeat(ANY_CHAR),
}


def check(matcher: Matcher, tokens: list[int], parents: list[int]) -> None:
    """Check that one call, cold and warm, agrees with forks, and keeps the state."""
    words = (matcher.constraint.vocabulary.size + 31) // 32
    before = matcher.history_length, matcher.is_accepting, matcher.is_terminated, matcher.state_id
    for _ in range(2):
        masks = np.full((len(tokens) + 3, words), -1, dtype=np.int32)
        allowed = matcher.fill_mask_tree(tokens, parents, masks, 1)
        assert matcher.validate_tree(tokens, parents) == allowed
        expected, expected_masks = masks_along(matcher, tokens, parents)
        assert allowed == expected
        np.testing.assert_array_equal(masks[1:-1], expected_masks)
        assert (masks[[0, -1]] == -1).all(), "other rows are written"
        assert (matcher.history_length, matcher.is_accepting, matcher.is_terminated, matcher.state_id) == before


@pytest.mark.parametrize("name", GRAMMARS)
def test_trees_of_all_grammars(name: str) -> None:
    """Random trees in random states agree, on a vocabulary with special tokens, two stops and parts of characters."""
    constraint = compile(GRAMMARS[name], TEXT)
    rng = random.Random(name)
    may_come = stops = 0
    for _ in range(12):
        matcher = constraint.matcher()
        for token in random_tree(matcher, rng, rng.randrange(4))[0]:
            matcher.accept(token)
        tokens, parents = random_tree(matcher, rng, rng.randrange(1, 24))
        check(matcher, tokens, parents)
        allowed = matcher.validate_tree(tokens, parents)
        may_come += sum(allowed)
        stops += sum(may and token in TEXT.eos for may, token in zip(allowed, tokens, strict=True))
    assert may_come > 30
    assert stops or name in ("schema", "host names")  # few walks end there


@pytest.mark.parametrize("name", GRAMMARS)
def test_trees_of_all_grammars_on_a_real_vocabulary(name: str, smollm_vocabulary: Vocabulary) -> None:
    """The same holds with 49k tokens."""
    if name == "special tokens":
        grammar: Grammar = repeat(choice(sequence(SpecialToken("<|im_start|>"), "ab"), literal("ba")), 0, 4)
    else:
        grammar = GRAMMARS[name]
    matcher = compile(grammar, smollm_vocabulary).matcher()
    rng = random.Random(name)
    for _ in range(2):
        check(matcher, *random_tree(matcher, rng, 16))


@pytest.mark.exhaustive
@settings(max_examples=60, deadline=None)
@given(
    tokens=vocabularies(b"ab"),
    grammar=st.one_of(regular_terms(b"ab"), rule_terms(b"ab")),
    seed=st.integers(0, 2**32),
)
def test_trees_of_random_grammars(tokens: list[bytes], grammar: Grammar, seed: int) -> None:
    """Regular and recursive terms agree on vocabularies of few letters."""
    _check_random(Vocabulary(tokens, eos=[0]), grammar, random.Random(seed))


@settings(max_examples=30, deadline=None)
@given(grammar=json_terms("aé😀"), seed=st.integers(0, 2**32))
def test_trees_of_random_texts(grammar: Grammar, seed: int) -> None:
    """JSON strings with every spelling agree, and characters that tokens cut."""
    _check_random(TEXT, grammar, random.Random(seed))


def _check_random(vocabulary: Vocabulary, grammar: Grammar, rng: random.Random) -> None:
    try:
        matcher = compile(grammar, vocabulary).matcher()
    except UnsatisfiableGrammar:
        return
    check(matcher, *random_tree(matcher, rng, 12))


def test_a_known_tree() -> None:
    """By hand: a refused token and a stop have empty rows and refuse their descendants."""
    vocabulary = Vocabulary([b"", b"a", b"b", b"ab"], eos=[0])
    matcher = compile(choice("a", "ab", "abb"), vocabulary).matcher()
    masks = np.zeros((9, 1), dtype=np.int32)
    #         0 a   1 b  2 EOS  3 ab  4 b   5 a   6 b   7 EOS
    tokens = [1, 2, 0, 3, 2, 1, 2, 0]
    parents = [-1, 0, 0, -1, 3, -1, 2, 4]
    allowed = matcher.fill_mask_tree(tokens, parents, masks)
    assert allowed == [True, True, True, True, True, True, False, True]
    assert masks[:, 0].tolist() == [0b1010, 0b101, 0b101, 0, 0b101, 0b1, 0b101, 0, 0]


def test_an_ended_text_and_an_empty_tree() -> None:
    """After the stop nothing may come; an empty tree gives the matcher's own mask."""
    matcher = compile(literal("ab"), TEXT).matcher()
    masks = np.full((3, (TEXT.size + 31) // 32), -1, dtype=np.int32)
    assert matcher.fill_mask_tree([], [], masks) == []
    expected = masks_along(matcher, [], [])[1]
    np.testing.assert_array_equal(masks[:1], expected)
    assert matcher.accept_bytes(b"ab") == 2
    assert matcher.accept(EOS)
    assert matcher.fill_mask_tree([EOS, 97], [-1, -1], masks) == [False, False]
    assert not masks.any()


@pytest.mark.parametrize(
    ("tokens", "parents", "error", "message"),
    [
        ([97], [0], ValueError, "token 0 has the parent 0"),
        ([97, 98], [-1, 2], ValueError, "token 1 has the parent 2"),
        ([97, 98], [-1, -2], ValueError, "token 1 has the parent -2"),
        ([97, 98], [-1], ValueError, "2 tokens and 1 parents"),
        ([97, 290], [-1, 0], VocabularyError, "token 290 is out of range"),
        ([-1], [-1], VocabularyError, "token -1 is out of range"),
        ([2**40], [-1], VocabularyError, "out of range"),
        (["a"], [-1], TypeError, "."),
        ([97], [2**40], TypeError, "."),
    ],
)
def test_what_is_no_tree_is_refused(
    tokens: list[int], parents: list[int], error: type[Exception], message: str
) -> None:
    """They are refused with and without masks, and in a batch; nothing is written."""
    matcher = compile(repeat(ANY_CHAR), TEXT).matcher()
    masks = np.full((4, (TEXT.size + 31) // 32), 7, dtype=np.int32)
    for call in (
        lambda: matcher.validate_tree(tokens, parents),
        lambda: matcher.fill_mask_tree(tokens, parents, masks),
        lambda: fill_mask_trees([matcher], [(tokens, parents)], masks),
    ):
        with pytest.raises(error, match=message):
            call()
    assert (masks == 7).all()
    assert matcher.accept(97)


def test_rows_that_are_missing_or_of_another_width_are_refused() -> None:
    """Every row of the tree must be there."""
    matcher = compile(repeat(ANY_CHAR), TEXT).matcher()
    words = (TEXT.size + 31) // 32
    for rows, row in ((2, 0), (3, 1), (3, 3), (3, 2**63)):
        with pytest.raises(IndexError, match="bitmask"):
            matcher.fill_mask_tree([97, 98], [-1, -1], np.zeros((rows, words), dtype=np.int32), row)
    with pytest.raises(ValueError, match="words"):
        matcher.fill_mask_tree([97], [-1], np.zeros((2, words + 1), dtype=np.int32))
    with pytest.raises(TypeError):
        matcher.fill_mask_tree([97], [-1], np.zeros((2, words), dtype=np.int64))
    with pytest.raises(ValueError, match="one tree for each"):
        fill_mask_trees([matcher], [], np.zeros((2, words), dtype=np.int32))
    with pytest.raises(IndexError, match="bitmask"):
        fill_mask_trees([matcher] * 2, [([97], [-1])] * 2, np.zeros((3, words), dtype=np.int32))


def test_tensors_and_arrays_of_ids() -> None:
    """Rows may be those of a CPU tensor, and ids those of an array."""
    torch = pytest.importorskip("torch")
    matcher = compile(GRAMMARS["schema"], TEXT).matcher()
    tokens, parents = random_tree(matcher, random.Random(0), 6)
    masks = torch.zeros((7, (TEXT.size + 31) // 32), dtype=torch.int32)
    allowed = matcher.fill_mask_tree(np.array(tokens), np.array(parents), masks)
    expected, rows = masks_along(matcher, tokens, parents)
    assert allowed == expected
    np.testing.assert_array_equal(masks.numpy(), rows)


@pytest.mark.parametrize("name", ["exploding", "unique texts"])
def test_a_spent_limit_leaves_the_matcher_as_it_was(name: str) -> None:
    """With any limit a tree gives an exact answer or an error, and the matcher goes on after an error."""
    grammar = sg.regex("(?:(?:[ab]{1,63}c?){1,99}d?){1,99}") if name == "exploding" else GRAMMARS[name]
    text = b"abaabcbabdabba" if name == "exploding" else b'["ab","ba"'
    tokens, parents = list(text), list(range(-1, len(text) - 1))
    expected, rows = masks_along(compile(grammar, TEXT).matcher(), tokens, parents)
    raised = exact = 0
    all_limits = [Limits(steps=10**power) for power in range(1, 8)] + [Limits(states=2**power) for power in range(14)]
    for number, limits in enumerate(all_limits, 1):
        # Padding that no other vocabulary has gives an engine without history.
        fresh = Vocabulary(TEXT.tokens, eos=TEXT.eos, special=TEXT.special, size=TEXT.size + number)
        try:
            matcher = compile(grammar, fresh, limits=limits).matcher()
        except LimitExceeded:
            continue
        masks = np.zeros((1 + len(tokens), (fresh.size + 31) // 32), dtype=np.int32)
        try:
            allowed = matcher.fill_mask_tree(tokens, parents, masks)
        except LimitExceeded:
            raised += 1
        else:
            exact += 1
            assert allowed == expected
            np.testing.assert_array_equal(masks[:, : rows.shape[1]], rows)
            assert not masks[:, rows.shape[1] :].any()
        assert matcher.history_length == 0
        assert not matcher.is_accepting
        try:
            assert matcher.accept(tokens[0])
        except LimitExceeded:
            assert matcher.history_length == 0
    assert raised
    assert exact


def test_trees_of_several_matchers() -> None:
    """A batch of different constraints agrees with single calls; trees of models are accepted as they are."""
    rng = random.Random(5)
    matchers = [compile(grammar, TEXT).matcher() for grammar in GRAMMARS.values()]
    trees = [TokenTree(*random_tree(matcher, rng, rng.randrange(9))) for matcher in matchers]
    masks = np.full((sum(1 + len(tree.token_ids) for tree in trees), (TEXT.size + 31) // 32), -1, dtype=np.int32)
    told = fill_mask_trees(matchers, trees, masks)
    row = 0
    for matcher, tree, allowed in zip(matchers, trees, told, strict=True):
        expected, rows = masks_along(matcher, list(tree.token_ids), list(tree.parents))
        assert allowed == expected
        np.testing.assert_array_equal(masks[row : row + len(rows)], rows)
        row += len(rows)


def test_trees_in_threads() -> None:
    """Matchers of one constraint may be called at the same time, while others compute new states."""
    constraint = compile(GRAMMARS["schema"], Vocabulary(TEXT.tokens, eos=TEXT.eos))
    rng = random.Random(11)
    reference = compile(GRAMMARS["schema"], TEXT).matcher()
    trees = [random_tree(reference, rng, 20) for _ in range(24)]
    expected = [masks_along(reference, *tree)[0] for tree in trees]
    found: dict[int, list[list[bool]]] = {}

    def ask(number: int) -> None:
        matcher = constraint.matcher()
        masks = np.zeros((21, (TEXT.size + 31) // 32), dtype=np.int32)
        found[number] = [matcher.fill_mask_tree(*tree, masks) for tree in trees]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(found.values()) == [expected] * 4


def test_a_tree_of_32_tokens_takes_less_than_a_third_of_a_millisecond(smollm_vocabulary: Vocabulary) -> None:
    """This is at steady state, masks included; an idle machine takes 0.01 ms."""
    matcher = compile(GRAMMARS["schema"], smollm_vocabulary).matcher()
    tokens, parents = random_tree(matcher, random.Random(3), 32)
    masks = np.zeros((33, (smollm_vocabulary.size + 31) // 32), dtype=np.int32)
    spent = []
    for _ in range(50):
        begun = time.perf_counter()
        matcher.fill_mask_tree(tokens, parents, masks)
        spent.append(time.perf_counter() - begun)
    assert min(spent) < 0.3e-3 * slowness()


def test_allowed_tokens_are_those_of_the_mask() -> None:
    """All allowed tokens are returned, up to the given number; stops are not among them."""
    rng = random.Random(2)
    for grammar in GRAMMARS.values():
        matcher = compile(grammar, TEXT).matcher()
        for _ in range(12):
            row = np.zeros((1, (TEXT.size + 31) // 32), dtype=np.int32)
            matcher.fill_mask(row)
            allowed = set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())
            ordinary = allowed - set(TEXT.eos)
            for most in (0, 1, 2, 5, 300):
                found = matcher.allowed_tokens(most)
                assert len(found) == len(set(found)) == min(most, len(ordinary))
                assert ordinary.issuperset(found)
            if not ordinary:
                break
            assert matcher.accept(rng.choice(sorted(ordinary)))
