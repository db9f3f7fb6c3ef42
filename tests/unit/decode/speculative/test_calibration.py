"""Estimates against Beta means in exact fractions."""

from __future__ import annotations

import doctest
import threading
from fractions import Fraction

import numpy as np
import pytest

from structgen.decode.speculative import acceptance as module
from structgen.decode.speculative.acceptance import Calibration


def test_the_estimate_is_the_mean_of_a_beta_distribution() -> None:
    generator = np.random.default_rng(5)
    calibration = Calibration(strength=3)
    outcomes: dict[int, list[bool]] = {key: [] for key in range(4)}
    priors = [Fraction(1, 8), Fraction(1, 2), Fraction(3, 4), Fraction(1, 4)]
    for _ in range(300):
        key, taken = int(generator.integers(4)), bool(generator.random() < 0.3)
        calibration.record(key, taken=taken)
        outcomes[key].append(taken)
        first = 3 * priors[key] + sum(outcomes[key])
        second = 3 * (1 - priors[key]) + len(outcomes[key]) - sum(outcomes[key])
        expected = first / (first + second)
        assert calibration.probability(key, float(priors[key])) == pytest.approx(float(expected), abs=1e-12)
        assert calibration.count(key) == len(outcomes[key])


def test_old_outcomes_fade() -> None:
    calibration = Calibration(memory=10, strength=1)
    taken = missed = Fraction(0)
    for outcome in [True] * 30 + [False] * 7:
        if taken + missed + 1 > 10:
            taken, missed = (each * 9 / (taken + missed) for each in (taken, missed))
        taken, missed = taken + outcome, missed + (not outcome)
        calibration.record("a", taken=outcome)
    assert calibration.count("a") == pytest.approx(10)
    assert calibration.probability("a") == pytest.approx(float((Fraction(1, 2) + taken) / (1 + taken + missed)))
    assert calibration.probability("a") < 0.55


def test_the_kinds_that_are_used_least_recently_are_forgotten() -> None:
    calibration = Calibration(max_keys=3)
    for key in "abc":
        calibration.record(key, taken=True)
    calibration.probability("a")
    calibration.record("d", taken=True)
    assert len(calibration) == 3
    assert [calibration.count(key) for key in "abcd"] == [1, 0, 1, 1]


def test_several_at_once_are_the_same_as_one_by_one() -> None:
    one, other = Calibration(memory=5), Calibration(memory=5)
    outcomes = [("ab"[index % 2], index % 3 == 0) for index in range(20)]
    one.record_all(outcomes)
    for key, taken in outcomes:
        other.record(key, taken=taken)
    assert [one.probability(key) for key in "ab"] == [other.probability(key) for key in "ab"]


def test_threads_lose_no_record() -> None:
    calibration = Calibration(memory=1e9)

    def work() -> None:
        for _ in range(2000):
            calibration.record("a", taken=True)
            calibration.probability("a")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calibration.count("a") == 8000


@pytest.mark.parametrize("settings", [{"prior": 0}, {"prior": 1}, {"strength": 0}, {"memory": 0.5}, {"max_keys": 0}])
def test_numbers_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"Calibration: {next(iter(settings))} must"):
        Calibration(**settings)  # type: ignore[arg-type]


def test_the_example_is_true() -> None:
    assert doctest.testmod(module).failed == 0
