"""The pool of phrases."""

from __future__ import annotations

import threading

import pytest
from handmade_passes import LETTERS

from structgen.methods.drafters.lookahead import PhrasePool


def test_the_latest_come_first() -> None:
    pool = PhrasePool(each=2)
    pool.add(LETTERS, [(1, 2, 3), (1, 4), (2, 5)])
    assert pool.after(LETTERS, 1) == [(4,), (2, 3)]
    pool.add(LETTERS, [(1, 2, 3), (1, 6, 6)])
    assert pool.after(LETTERS, 1) == [(6, 6), (2, 3)]
    assert pool.after(LETTERS, 2) == [(5,)]
    assert pool.after(LETTERS, 3) == []


def test_a_phrase_swallows_its_prefixes() -> None:
    pool = PhrasePool()
    pool.add(LETTERS, [(1, 2), (1, 3), (1, 2, 4)])
    assert pool.after(LETTERS, 1) == [(2, 4), (3,)]
    pool.add(LETTERS, [(1, 3, 3), (1, 2)])
    assert pool.after(LETTERS, 1) == [(2, 4), (3, 3)]


def test_phrases_have_a_length() -> None:
    pool = PhrasePool(length=3)
    pool.add(LETTERS, [(1, 2, 3, 4), (5,), ()])
    assert pool.after(LETTERS, 1) == [(2, 3)]
    assert len(pool) == 1


def test_first_tokens_that_got_nothing_longest_are_forgotten() -> None:
    pool = PhrasePool(most=2)
    pool.add(LETTERS, [(1, 2), (2, 3), (1, 4), (3, 4)])
    assert [token for token in (1, 2, 3) if pool.after(LETTERS, token)] == [1, 3]


def test_threads_share_it() -> None:
    pool = PhrasePool(each=3, most=4)

    def use(seed: int) -> None:
        for number in range(500):
            pool.add(LETTERS, [(number % 7, seed, number % 5)])
            assert len(pool.after(LETTERS, number % 3)) <= 3

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 < len(pool) <= 12


@pytest.mark.parametrize("numbers", [{"each": 0}, {"most": 0}, {"length": 1}])
def test_numbers_are_checked(numbers: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="PhrasePool"):
        PhrasePool(**numbers)
