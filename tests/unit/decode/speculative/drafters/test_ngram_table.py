"""The table of distributions after n-grams, against means computed from all observations."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
from handmade_passes import LETTERS

from structgen.decode.speculative.drafters.likely_tokens import NGramTable


def shares(logits: list[float]) -> np.ndarray:
    weights = np.exp(np.array(logits) - max(logits))
    result: np.ndarray = weights / weights.sum()
    return result


@pytest.mark.parametrize("seed", range(6))
def test_distributions_are_the_means_of_what_was_told(seed: int) -> None:
    """This holds while nothing fades and nothing is truncated."""
    rng = random.Random(seed)
    store = NGramTable(3, keep=9)
    told: dict[tuple[int, ...], list[np.ndarray]] = {}
    for _ in range(15):
        before = tuple(rng.choices(range(1, 4), k=rng.randint(1, 5)))
        tokens = rng.sample(range(9), rng.randint(1, 4))
        logits = sorted((rng.uniform(-3, 3) for _ in tokens), reverse=True)
        store.learn(LETTERS, [(before, tokens, logits)])
        distribution = np.zeros(9)
        distribution[tokens] = shares(logits)
        for length in range(1, min(3, len(before)) + 1):
            told.setdefault(before[-length:], []).append(distribution)
    for run, distributions in told.items():
        found = {known.length: known for known in store.find(LETTERS, run)}
        assert max(found) == len(run)
        known = found[len(run)]
        mean = np.mean(distributions, axis=0)
        assert known.probabilities == sorted(known.probabilities, reverse=True)
        assert sum(known.probabilities) == pytest.approx(1)
        assert known.probabilities == pytest.approx(mean[known.tokens].tolist(), abs=1e-12)
        assert set(known.tokens) == set(np.flatnonzero(mean).tolist())
    assert len(store) == len(told)


def test_the_longest_run_comes_first() -> None:
    store = NGramTable(2)
    store.learn(LETTERS, [((1, 2), [3], [0.0])])
    store.learn(LETTERS, [((5, 2), [4], [0.0])])
    assert [(each.length, each.tokens) for each in store.find(LETTERS, [9, 1, 2])] == [(2, [3]), (1, [3, 4])]
    assert [(each.length, each.tokens) for each in store.find(LETTERS, [7, 2])] == [(1, [3, 4])]
    assert store.find(LETTERS, [7]) == []


def test_only_the_most_probable_tokens_are_kept() -> None:
    store = NGramTable(1, keep=2)
    store.learn(LETTERS, [((1,), [3, 4, 5], [2.0, 1.0, 0.0])])
    assert store.find(LETTERS, [1])[0].tokens == [3, 4]
    store.learn(LETTERS, [((1,), [6], [0.0])] * 3)
    assert store.find(LETTERS, [1])[0].tokens == [6, 3]


def test_a_distribution_that_changed_is_found_again() -> None:
    store = NGramTable(1)
    store.learn(LETTERS, [((1,), [3], [0.0])] * 1_000)
    store.learn(LETTERS, [((1,), [4], [0.0])] * 16)
    assert store.find(LETTERS, [1])[0].tokens == [4, 3]


def test_runs_that_were_not_used_longest_are_forgotten() -> None:
    store = NGramTable(1, most=3)
    for token in (1, 2, 3):
        store.learn(LETTERS, [((token,), [5], [0.0])])
    store.find(LETTERS, [1])
    store.learn(LETTERS, [((4,), [5], [0.0])])
    assert [token for token in range(1, 5) if store.find(LETTERS, [token])] == [1, 3, 4]
    assert len(store) == 3


def test_threads_share_it() -> None:
    store = NGramTable(3, most=50)
    failures: list[BaseException] = []

    def use(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(300):
                before = rng.choices(range(9), k=4)
                store.learn(LETTERS, [(before, [1, 2, 3], [0.5, 0.2, 0.1])])
                for known in store.find(LETTERS, rng.choices(range(9), k=4)):
                    assert sum(known.probabilities) == pytest.approx(1)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(store) <= 50


@pytest.mark.parametrize("numbers", [{"order": 0}, {"keep": 0}, {"most": 0}])
def test_numbers_are_checked(numbers: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="NGramTable"):
        NGramTable(**numbers)
