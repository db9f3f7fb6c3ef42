"""Copies from earlier outputs: counted by brute force, resumed after an edit, bounded, shared by threads."""

from __future__ import annotations

import doctest
import threading
from collections import Counter
from difflib import SequenceMatcher

import numpy as np
import pytest
from drafter_replay import draft_for, replay
from word_vocabulary import draft_vocabulary

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.drafter import Verified
from structgen.decode.speculative.drafters import retrieval as draft_store
from structgen.decode.speculative.drafters.retrieval import DraftStore, Retrieval
from structgen.decode.speculative.drafters.suffix_index import Continuation, candidates_of
from structgen.engine import compile
from structgen.grammar.nodes import ByteClass, Repeat

VOCABULARY = draft_vocabulary()
ANYTHING = compile(Repeat(ByteClass([(0, 255)]), 0, None), VOCABULARY)


def outputs(seed: int, count: int = 12, size: int = 4) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(98, 98 + size, size=int(generator.integers(1, 25))).tolist() for _ in range(count)]


@pytest.mark.parametrize("seed", range(25))
def test_continuations_are_all_that_followed_the_longest_suffix(seed: int) -> None:
    texts = outputs(seed)
    store = DraftStore()
    for text in texts:
        store.add(text)
    suffix = outputs(seed + 1000, 1)[0]
    expected: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for text in texts:
        for at in range(1, len(text)):
            length = 0
            while length < min(at, len(suffix)) and text[at - 1 - length] == suffix[-1 - length]:
                length += 1
            if length:
                expected[length, tuple(text[at : at + 64])] += 1
    found = store.continuations(suffix, places=10_000)
    assert Counter((each.length, tuple(each.tokens)) for each in found) == expected
    assert [each.length for each in found] == sorted((each.length for each in found), reverse=True)


@pytest.mark.parametrize("seed", range(25))
def test_shares_are_those_of_a_count_over_all_places(seed: int) -> None:
    generator = np.random.default_rng(seed)
    found = [Continuation(generator.integers(0, 3, size=4).tolist(), int(generator.integers(1, 6))) for _ in range(9)]

    def check(path: list[int], drafts: list[tuple[int, object]]) -> None:
        weights: Counter[int] = Counter()
        for each in found:
            if list(each.tokens[: len(path)]) == path and len(each.tokens) > len(path):
                weights[each.tokens[len(path)]] += (1 + each.length + len(path)) ** 2
        total = sum(weights.values())
        assert {token: round(4 * weight / total) for token, weight in weights.items()} == dict(drafts)

    def walk(path: list[int], drafts: object) -> None:
        listed = list(drafts)  # type: ignore[call-overload]
        check(path, [(draft.token, draft.key[2]) for draft in listed])
        for draft in listed:
            walk([*path, draft.token], draft.then())

    walk([], candidates_of(found, "x"))


EDITS = [
    ("once", '{"name":"Ada","city":"London","tags":["a","b"]}', '{"name":"Ada","city":"London","tags":["a","b"]}'),
    ("exchanged", "one two three four five six seven eight", "one two three FOUR five six seven eight"),
    ("left out", "one two three four five six seven eight", "one two three five six seven eight"),
    ("added", "one two three four five six seven eight", "one two three and a half four five six seven eight"),
]


@pytest.mark.parametrize(("name", "first", "second"), EDITS)
def test_what_is_asked_again_with_an_edit_is_copied(name: str, first: str, second: str) -> None:
    drafter = Retrieval(distributions=None)
    old, new = (VOCABULARY.tokenize(text) for text in (first, second))
    replay(drafter, ANYTHING, [99], old)
    distractor = VOCABULARY.tokenize("seven two five one six three " * 3)
    replay(drafter, ANYTHING, [99], distractor)
    without = replay(None, ANYTHING, [99], new).passes
    found = replay(drafter, ANYTHING, [99], new)
    common = sum(block.size for block in SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks())
    assert without == len(new) + 1
    # A budget of 24 tokens needs three passes; each new token takes one, and finding the place again takes two.
    assert found.passes <= 3 + len(new) - common + (2 if first != second else 0)


def test_a_store_is_bounded_and_forgets_the_oldest() -> None:
    store = DraftStore(max_tokens=100)
    for text in outputs(3, 200, 100):
        store.add(text)
        assert len(store) <= 100
    store.add([97, 96])
    assert store.continuations([97], places=4)[0].tokens == [96]
    store.add(list(range(500)))
    assert len(store) == 100
    assert store.outputs == 1
    assert store.continuations([450], places=4)[0].tokens == list(range(451, 500))
    assert store.continuations([97], places=4) == store.continuations([300], places=4) == []


def test_an_output_is_added_once_it_is_complete() -> None:
    drafter = Retrieval()
    drafting, context, state = draft_for(drafter, ANYTHING, [50, 51])
    drafting.propose(context, state, 8)
    context.append([97, 98])
    drafting.propose(context, state, 8)
    context.append([99])
    assert drafter.store.outputs == 0
    drafting.close()
    assert drafter.store.continuations([97], places=1)[0].tokens == [98, 99]


def test_what_was_taken_back_is_not_added() -> None:
    drafter = Retrieval()
    drafting, context, state = draft_for(drafter, ANYTHING, [50])
    for token in (97, 98, 99, 100):
        context.append([token])
        drafting.propose(context, state, 8)
    context.truncate(2)
    context.append([110])
    drafting.propose(context, state, 8)
    drafting.close()
    assert drafter.store.continuations([97], places=4)[0].tokens == [110]
    assert drafter.store.continuations([98], places=4) == []


def test_the_prefix_is_that_of_the_latest_outputs() -> None:
    drafter = Retrieval(distributions=None)
    drafter.store.add([97, 98, 99])
    drafting, context, state = draft_for(drafter, ANYTHING, [50])
    assert drafting.propose(context, state, 8).tokens == [97, 98, 99]


def test_distributions_of_the_target_serve_where_no_output_helps() -> None:
    drafter = Retrieval()
    drafting, context, state = draft_for(drafter, ANYTHING, [50, 97, 98])
    tree = DraftTree.chain([99])
    rows = np.full((2, VOCABULARY.size), -9.0, dtype=np.float32)
    rows[0, 99] = rows[1, 100] = 5.0
    drafting.observe(Verified(3, tree, rows))
    found = drafting.propose(context, state, 4)
    best = found.child(ROOT, 99)
    assert best is not None
    assert found.child(best, 100) is not None


def test_threads_may_share_a_store() -> None:
    drafter = Retrieval(DraftStore(max_tokens=300))
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for text in outputs(seed, 25):
                replay(drafter, ANYTHING, [50], text)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert 0 < len(drafter.store) <= 300


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="DraftStore: max_tokens"):
        DraftStore(max_tokens=1)
    with pytest.raises(ValueError, match="Retrieval: places"):
        Retrieval(places=0)


def test_the_example_is_true() -> None:
    assert doctest.testmod(draft_store).failed == 0
