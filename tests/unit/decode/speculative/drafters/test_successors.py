"""The most probable successors of tokens at their last occurrence."""

from __future__ import annotations

import threading

import pytest
from handmade_passes import LETTERS

from structgen.decode.speculative.drafters.token_recycling import Successors
from structgen.engine import Vocabulary


def test_the_last_row_counts() -> None:
    store = Successors(3)
    assert store.after(LETTERS, 2) == []
    store.learn(LETTERS, [(2, [0, 5, 3, 1]), (4, [8])])
    assert store.after(LETTERS, 2) == [0, 5, 3]
    store.learn(LETTERS, [(2, [7])])
    assert store.after(LETTERS, 2) == [7]
    assert store.after(LETTERS, 4) == [8]


def test_vocabularies_are_kept_apart_by_content() -> None:
    store = Successors(2)
    other = Vocabulary([b"", b"x", b"y"], eos=[0])
    store.learn(LETTERS, [(1, [2])])
    store.learn(other, [(1, [1])])
    assert store.after(LETTERS, 1) == [2]
    assert store.after(Vocabulary([b"", b"x", b"y"], eos=[0]), 1) == [1]


def test_it_is_small() -> None:
    large = Vocabulary([b"", *(b"%d" % number for number in range(49_151))], eos=[0])
    store = Successors()
    assert store.nbytes == 0
    store.learn(large, [(7, range(8))])
    assert store.nbytes == 49_152 * 8 * 4 < 2_000_000


def test_a_row_is_read_as_it_was_written() -> None:
    store = Successors(8)
    rows = [[number] * 8 for number in (1, 2, 3)]
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for row in rows:
                store.learn(LETTERS, [(1, row)])

    writers = [threading.Thread(target=write) for _ in range(3)]
    for writer in writers:
        writer.start()
    try:
        seen = [store.after(LETTERS, 1) for _ in range(3_000)]
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert all(row in ([], *rows) for row in seen)


def test_it_holds_something() -> None:
    with pytest.raises(ValueError, match="count"):
        Successors(0)
