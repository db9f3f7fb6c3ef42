"""Bounds on time hold for too much work, however busy the machine is."""

from __future__ import annotations

import gc

import pytest
from machine_load import at_most, slowness


def test_no_machine_is_faster_than_an_idle_one() -> None:
    """Bounds are never reduced."""
    assert slowness() >= 1


def test_too_much_work_fails() -> None:
    """A bound that is far too small for the work fails, and the message says by how much."""
    with pytest.raises(AssertionError, match=r"took [0-9.]+ s, not 0\.0001 s"), at_most(0.0001):
        sum(range(10_000_000))
    with at_most(20):
        sum(range(10_000_000))


def test_errors_of_the_body_are_its_own() -> None:
    """An exception of the body passes through, and the garbage collector sees all objects again."""
    before = gc.get_threshold()
    with pytest.raises(KeyError), at_most(0):
        {}["missing"]
    assert gc.get_threshold() == before
