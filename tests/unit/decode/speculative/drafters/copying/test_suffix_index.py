"""Earlier occurrences, against a search at every position."""

from __future__ import annotations

import numpy as np
import pytest

from structgen.decode.speculative.drafters.suffix_index import BARRIER, SuffixIndex, SuffixMatch


def brute_force(tokens: list[int], first: int, suffix: list[int]) -> list[SuffixMatch]:
    """All places where at least one token agrees, the longest first, ties by the latest."""
    found = []
    for at in range(1, len(tokens)):
        if tokens[at] == BARRIER:
            continue
        length = 0
        while length < min(at, len(suffix), 64) and tokens[at - 1 - length] == suffix[-1 - length] != BARRIER:
            length += 1
        if length:
            found.append(SuffixMatch(first + at, length))
    return sorted(found, key=lambda match: (-match.length, -match.position))


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("size", [2, 3, 7])
def test_all_occurrences_are_found(seed: int, size: int) -> None:
    generator = np.random.default_rng([seed, size])
    tokens = generator.integers(0, size, size=int(generator.integers(1, 60))).tolist()
    for _ in range(int(generator.integers(0, 3))):
        tokens.insert(int(generator.integers(len(tokens))), BARRIER)
    index = SuffixIndex(tokens)
    for suffix in (tokens, generator.integers(0, size, size=10).tolist(), [0], [size]):
        assert index.find(suffix, 1000) == brute_force(tokens, 0, suffix)


@pytest.mark.parametrize("seed", range(25))
def test_the_longest_is_found_with_few_places(seed: int) -> None:
    generator = np.random.default_rng(seed)
    tokens = generator.integers(0, 40, size=300).tolist()
    copied = int(generator.integers(0, 200))
    tokens += tokens[copied : copied + int(generator.integers(2, 30))]
    found = SuffixIndex(tokens).find(tokens[-64:], 8)
    expected = brute_force(tokens, 0, tokens)
    assert found[0].length == expected[0].length
    assert set(found) <= set(expected)


@pytest.mark.parametrize("seed", range(25))
def test_what_was_taken_back_is_as_if_it_had_never_come(seed: int) -> None:
    generator = np.random.default_rng(seed)
    index = SuffixIndex()
    kept: list[int] = []
    for _ in range(12):
        if kept and generator.random() < 0.4:
            length = int(generator.integers(len(kept) + 1))
            index.truncate(length)
            del kept[length:]
        else:
            more = generator.integers(-1, 3, size=int(generator.integers(1, 12))).tolist()
            index.extend(more)
            kept += more
        assert index.tokens == kept
        suffix = generator.integers(0, 3, size=9).tolist()
        assert index.find(suffix, 1000) == brute_force(kept, 0, suffix)
        assert index.find(suffix, 1000) == SuffixIndex(kept).find(suffix, 1000)


@pytest.mark.parametrize("seed", range(25))
def test_what_was_forgotten_is_not_found(seed: int) -> None:
    generator = np.random.default_rng(seed)
    texts = [generator.integers(0, 4, size=int(generator.integers(1, 15))).tolist() for _ in range(9)]
    index = SuffixIndex()
    for text in texts:
        index.extend([*text, BARRIER])
    gone = 0
    for number, text in enumerate(texts):
        index.forget(len(text) + 1)
        gone += len(text) + 1
        left = [token for each in texts[number + 1 :] for token in [*each, BARRIER]]
        assert (index.first, index.tokens) == (gone, left)
        suffix = generator.integers(0, 4, size=6).tolist()
        assert index.find(suffix, 1000) == brute_force(left, gone, suffix)
    assert not any(index._heads)
    assert not any(index._links)


def test_what_follows_ends_at_a_barrier() -> None:
    index = SuffixIndex([1, 2, 3, BARRIER, 4, 5])
    assert index.following(1, 10) == [2, 3]
    assert index.following(4, 1) == [4]
    assert index.following(6, 5) == []
    index.forget(4)
    assert index.following(1, 10) == []
    assert index.following(4, 10) == [4, 5]
