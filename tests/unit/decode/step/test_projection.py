"""The masked distribution, against sums in plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest

from structgen.decode.step.distribution import log_mass, project
from structgen.engine.mask import allowed_ids
from structgen.errors import GenerationError


def plain_log_mass(values: list[float]) -> float:
    """Log of a sum of exponentials, summed exactly."""
    top = max(values)
    return top + math.log(math.fsum(math.exp(value - top) for value in values))


@pytest.mark.parametrize("size", [1, 7, 31, 32, 33, 64, 100])
def test_allowed_ids_reads_every_bit(size: int) -> None:
    """Id ``i`` is bit ``i & 31`` of word ``i >> 5``, and bits from the size on are not read."""
    rng = np.random.default_rng(size)
    words = rng.integers(-(2**31), 2**31, (size + 31) // 32).astype(np.int32)
    expected = [i for i in range(size) if (int(words[i >> 5]) & 0xFFFFFFFF) >> (i & 31) & 1]
    assert allowed_ids(words, size).tolist() == expected


@pytest.mark.parametrize("shift", [0.0, 1e4, -1e4])
def test_projection_renormalises_and_keeps_the_mass(shift: float) -> None:
    """Allowed tokens keep their ratios and sum to one; ``log_z`` is the log of their original mass."""
    rng = np.random.default_rng(1)
    logits = (rng.normal(0, 5, 300) + shift).astype(np.float32)
    ids = np.flatnonzero(rng.random(300) < 0.1)
    projection = project(logits, ids)
    values = logits.tolist()
    total, kept = plain_log_mass(values), plain_log_mass([values[i] for i in ids])
    assert projection.log_z == pytest.approx(kept - total, abs=1e-9)
    expected = [values[i] - kept for i in ids]
    assert projection.log_p.tolist() == pytest.approx(expected, abs=1e-9)
    assert math.fsum(math.exp(value) for value in projection.log_p) == pytest.approx(1, abs=1e-12)


def test_improbable_allowed_tokens_do_not_underflow() -> None:
    """Allowed tokens may have probability e^-500: their ratios and their mass are still exact."""
    logits = np.array([0.0, -500.0, -501.0], dtype=np.float32)
    projection = project(logits, np.array([1, 2]))
    assert projection.log_z == pytest.approx(-500 + math.log1p(math.exp(-1)))
    assert projection.log_p[0] - projection.log_p[1] == pytest.approx(1)


def test_excluded_tokens_may_be_impossible() -> None:
    """Negative infinity is a probability of zero, among the allowed tokens as among the excluded ones."""
    logits = np.array([-np.inf, 1.0, -np.inf, 1.0], dtype=np.float32)
    projection = project(logits, np.array([0, 1]))
    assert projection.log_z == pytest.approx(math.log(0.5))
    assert projection.log_p.tolist() == [-np.inf, 0.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_refused(bad: float) -> None:
    """NaN and infinity come from a broken model: they give an error, not a sample."""
    logits = np.zeros(8, dtype=np.float32)
    logits[3] = bad
    with pytest.raises(GenerationError, match="NaN or infinity"):
        project(logits, np.array([0, 1]))


def test_no_probability_left_is_refused() -> None:
    """A model that excludes everything that the grammar allows is an error that names the tokens."""
    logits = np.array([0.0, -np.inf, -np.inf], dtype=np.float32)
    with pytest.raises(GenerationError, match=r"\[1, 2\]"):
        project(logits, np.array([1, 2]))


def test_log_mass_of_nothing_is_negative_infinity() -> None:
    """All logits at negative infinity have mass zero."""
    assert log_mass(np.full(3, -np.inf, dtype=np.float32)) == -math.inf
