"""Sets of positions, against Python's own sets."""

from __future__ import annotations

from hypothesis import given, strategies as st

from structgen.engine.parse.chart import NO_ENDS, EndSet

positions = st.frozensets(st.one_of(st.integers(0, 40), st.integers(0, 5_000)), max_size=8)


def ends(members: frozenset[int]) -> EndSet:
    return EndSet.of(sorted(members))


@given(positions, positions)
def test_operations_are_those_of_sets(left: frozenset[int], right: frozenset[int]) -> None:
    """Union, intersection and difference agree with those of Python's sets."""
    assert set(ends(left) | ends(right)) == left | right
    assert set(ends(left) & ends(right)) == left & right
    assert set(ends(left) - ends(right)) == left - right


@given(positions, positions)
def test_equal_sets_are_equal_values(left: frozenset[int], right: frozenset[int]) -> None:
    """Sets with the same members are equal, however they were made, and no others are."""
    assert (ends(left) == ends(right)) == (left == right)
    assert ends(left) | ends(right) == ends(left | right)
    assert hash(ends(left) - ends(right)) == hash(ends(left - right))


@given(positions, st.integers(0, 5_100), st.integers(0, 5_100))
def test_members(members: frozenset[int], low: int, high: int) -> None:
    """Membership, truth, the last member and slices agree with Python's set."""
    made = ends(members)
    assert (low in made) == (low in members)
    assert bool(made) == bool(members)
    assert not members or made.last == max(members)
    assert set(made.between(low, high)) == {member for member in members if low <= member <= high}


def test_the_empty_set_has_one_form() -> None:
    """The empty set is always ``NOWHERE``, wherever it was cut from."""
    assert EndSet(7, 0) == NO_ENDS
    assert EndSet(3).between(5, 9) == NO_ENDS
    assert list(NO_ENDS) == []
