"""The longest string of a grammar, against all strings of small grammars and known lengths of larger ones."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from structgen.frontends.json_schema import json_schema
from structgen.frontends.regex import regex
from structgen.grammar.lengths import Longest, longest
from structgen.grammar.nodes import (
    EMPTY,
    EPSILON,
    Grammar,
    JsonString,
    Permutation,
    SpecialToken,
    literal,
    repeat,
    sequence,
)
from structgen.grammar.reader import parse
from structgen.testing.small_scope import BOOLEAN, ITSELF, REGULAR, language, recursive, small_terms

UNIVERSE = 6
PUMPED = 4
"""A grammar of few nodes that is unbounded has a member from this length on up to ``UNIVERSE``."""


def _agrees(found: Longest, members: set[bytes]) -> bool:
    most = max(map(len, members))
    if found.is_unbounded:
        return most >= PUMPED
    if found.at_least is not None and most < found.at_least <= UNIVERSE:
        return False
    return found.at_most is None or most <= found.at_most


def test_regular_terms_by_enumeration() -> None:
    """Every bound holds for every small regular term, and without booleans every length is exact."""
    compared = exact = 0
    for term in small_terms(5, [literal("a"), literal("bb"), EPSILON], (*REGULAR, *BOOLEAN)):
        members = language(term, UNIVERSE, b"ab")
        if members:
            found = longest(term)
            assert _agrees(found, members), term
            compared += 1
            exact += found.is_exact or found.is_unbounded
            assert found.is_exact or found.is_unbounded or "&" in str(term) or "~" in str(term), term
    assert compared > 1_000
    assert exact > 0.7 * compared


def test_permutations_by_enumeration() -> None:
    """Every length of a permutation without special items is exact, with bounds on the number of items too."""
    members = [literal("a"), literal("bb"), EPSILON, EMPTY, repeat(literal("a"), 0, 2)]
    compared = 0
    for required, optional in product(product(members, repeat=1), product(members, repeat=2)):
        for rest, separator, (least, most) in product(members, (EPSILON, literal(",")), ((0, None), (2, None), (0, 2))):
            term = Permutation(required, optional, rest, separator, min=least, max=most)
            found = language(term, UNIVERSE, b"ab,")
            if found:
                assert _agrees(longest(term), found), term
                assert longest(term).is_exact or longest(term).is_unbounded, term
                compared += 1
        if compared > 400:
            break
    assert compared > 300


def test_recursive_terms_by_enumeration() -> None:
    """The same holds for rules with recursion on the right, on the left, in the middle and twice."""
    compared = bounded = unbounded = 0
    for term in small_terms(5, [literal("a"), EPSILON, ITSELF], REGULAR):
        grammar = recursive(term)
        members = language(grammar, UNIVERSE, b"a")
        if members:
            found = longest(grammar)
            assert _agrees(found, members), term
            compared += 1
            bounded += found.is_finite
            unbounded += found.is_unbounded
    assert compared > 500
    assert bounded > 100
    assert unbounded > 50


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('rules { a = "(" b ")"; b = a | "x" } in a', "unbounded"),
        ('rules { a = b | "xyz"; b = a | "x" } in "<" a', "4"),
        ('rules { a = "x" | "y" b; b = "z" b } in a', "1"),  # b has no string
        ('rules { a = "x" a{0} } in a', "1"),
        ('rules { a = "x" | a{2} } in a', "not known to be bounded"),
        ('rules { a = "(" a a ")" | "" } in a', "unbounded"),
        ('"ab"{2,3} & "a"{0,9}', "at most 6"),
        ('[a-c]{3} & ~"ab"', "3"),
        ('~"abc"', "unbounded"),
        ('~("a"{0,})', "not known to be bounded"),
        ("shared([a-é])", "2"),
        (r'b[\xff]{3} & ~"b"', "at most 3"),
    ],
)
def test_lengths_of_known_terms(text: str, shown: str) -> None:
    """Cycles that add text are unbounded, others are not; complements are handled."""
    assert str(longest(parse(text))) == shown


def test_spellings_of_json_strings() -> None:
    """Inside a JSON string each UTF-16 unit may be an escape of six bytes."""
    for value, members in (("a", 1), ("é", 1), ("😀", 2)):
        assert longest(JsonString(literal(value))).at_most == 2 + 6 * members
    assert longest(JsonString(regex(".{0,3}"))).at_most == 2 + 12 * 3
    assert longest(JsonString(regex(".*"))).is_unbounded


def test_special_tokens_count_as_one() -> None:
    """A special token counts as one, as in the distances of the engine."""
    assert longest(sequence("a", repeat(SpecialToken("<x>"), 0, 3))).at_most == 4


@pytest.mark.parametrize(
    ("schema", "longest_text"),
    [
        ({"enum": ["a", "bcd", None]}, '"bcd"'),
        ({"type": "object", "properties": {"a": {"type": "boolean"}}, "additionalProperties": False}, '{"a":false}'),
        ({"type": "array", "items": {"const": 10}, "maxItems": 3}, "[10,10,10]"),
        ({"type": "integer", "minimum": -5, "maximum": 100}, "100"),
    ],
)
def test_schemas_with_a_longest_text(schema: Any, longest_text: str) -> None:
    """The longest text of a closed schema, written without white space, is exact."""
    assert longest(json_schema(schema, whitespace="compact")) == Longest(len(longest_text), len(longest_text))


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"type": "string"},
        {"type": "object", "additionalProperties": {"type": "null"}},
        {"type": "object", "properties": {"n": {"$ref": "#"}}, "additionalProperties": False},
    ],
)
def test_schemas_without_a_longest_text(schema: Any) -> None:
    """Free strings, open objects and recursive schemas are unbounded."""
    assert longest(json_schema(schema)).is_unbounded


def test_depth_is_no_concern() -> None:
    """A term nested ten thousand deep is measured."""
    term: Grammar = literal("a")
    for _ in range(10_000):
        term = repeat(sequence("b", term), 0, 1)
    assert longest(term).at_most == 10_001
