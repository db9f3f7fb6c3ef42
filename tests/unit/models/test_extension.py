"""What every session refuses before a forward pass."""

from __future__ import annotations

import numpy as np
import pytest

from structgen.errors import GenerationError
from structgen.models.extension import check_extension, check_truncation

LIMITS = {"length": 6, "name": "m", "id_limit": 10, "max_context": 8}


def test_ids_become_plain_ints() -> None:
    """Arrays and numpy integers are taken too."""
    ids = check_extension(np.array([9, 0]), **LIMITS)
    assert ids == [9, 0]
    assert {type(token) for token in ids} == {int}


@pytest.mark.parametrize(
    ("ids", "problem"),
    [
        ([], "no tokens to extend"),
        ([1, 10], "no token has the id 10"),
        ([-1], "no token has the id -1"),
        ([1, 2, 3], "1 tokens longer than the context"),
    ],
)
def test_bad_extensions_are_refused(ids: list[int], problem: str) -> None:
    """Each fault has its own message."""
    with pytest.raises(GenerationError, match=problem):
        check_extension(ids, **LIMITS)


def test_there_may_be_no_bound() -> None:
    """A model without a stated context takes any length."""
    assert len(check_extension([1] * 1000, **{**LIMITS, "max_context": None})) == 1000


@pytest.mark.parametrize("length", [-1, 7])
def test_truncation_stays_within_the_sequence(length: int) -> None:
    """A sequence cannot be cut to more than it holds."""
    with pytest.raises(GenerationError, match=f"cannot be cut to {length} tokens"):
        check_truncation(length, held=6, name="m")
    check_truncation(0, held=6, name="m")
    check_truncation(6, held=6, name="m")
