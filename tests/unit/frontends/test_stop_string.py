"""Any text up to a stop: against a search for the first occurrence, text by text."""

from __future__ import annotations

import itertools
import re

import pytest

from structgen.errors import GrammarError
from structgen.frontends.free_text import any_text
from structgen.frontends.regex import regex
from structgen.grammar.nodes import Reference, Rules, SpecialToken, literal
from structgen.testing.small_scope import language

LENGTH = 6
TEXTS = [bytes(word) for size in range(LENGTH + 1) for word in itertools.product(b"ab", repeat=size)]
BOUNDS = [(0, None), (1, 3), (2, None)]


def fits(text: bytes, low: int, high: int | None) -> bool:
    return len(text) >= low and (high is None or len(text) <= high)


@pytest.mark.parametrize(("low", "high"), BOUNDS)
@pytest.mark.parametrize("stop", ["b", "ab", "aba", "aa", "aabaa", "bb"])
def test_a_text_stops_at_its_first_occurrence(stop: str, low: int, high: int | None) -> None:
    """The text before the stop lets it neither begin nor end earlier, overlaps included."""
    end = stop.encode()
    before = {text for text in TEXTS if (text + end).find(end) == len(text) and fits(text, low, high)}
    assert language(any_text(until=stop, min=low, max=high), LENGTH, b"ab") == before
    with_stop = {text + end for text in before if len(text + end) <= LENGTH}
    assert language(any_text(until=stop, min=low, max=high, with_stop=True), LENGTH, b"ab") == with_stop
    assert language(any_text(until=stop, min=low, max=high) + stop, LENGTH, b"ab") == with_stop


@pytest.mark.parametrize(("low", "high"), BOUNDS)
@pytest.mark.parametrize("stop", ["b+", "ab|ba", "a[ab]b", "bb?a"])
def test_a_grammar_stops_where_it_first_ends(stop: str, low: int, high: int | None) -> None:
    """The occurrence that ends first is the stop; without it, texts in which it does not occur are accepted."""
    pattern = re.compile(stop.encode())
    without = {text for text in TEXTS if not pattern.search(text) and fits(text, low, high)}
    assert language(any_text(until=regex(stop), min=low, max=high), LENGTH, b"ab") == without
    with_stop = {
        text
        for text in TEXTS
        if not pattern.search(text[:-1])
        and any(pattern.fullmatch(text[at:]) and fits(text[:at], low, high) for at in range(len(text)))
    }
    assert language(any_text(until=regex(stop), min=low, max=high, with_stop=True), LENGTH, b"ab") == with_stop


def test_without_a_stop_it_is_any_text() -> None:
    """Only the number of characters counts."""
    assert language(any_text(max=2), 3, b"ab") == {text for text in TEXTS if len(text) <= 2}
    assert language(any_text(min=1, max=1), 2, "é".encode()) == {"é".encode()}


@pytest.mark.parametrize(
    ("arguments", "error", "problem"),
    [
        ({"until": 3}, TypeError, "expected a text or a grammar"),
        ({"until": ""}, ValueError, "matches the empty string"),
        ({"until": regex("a*")}, ValueError, "matches the empty string"),
        ({"until": "a", "min": 3, "max": 2}, ValueError, "contain no number"),
        ({"min": -1}, ValueError, "contain no number"),
        ({"with_stop": True}, ValueError, "with_stop needs a stop"),
        ({"until": SpecialToken("<s>")}, GrammarError, "not regular"),
        ({"until": Rules({"s": "a" + Reference("s") | "b"}, Reference("s"))}, GrammarError, "not regular"),
        ({"until": literal("a").at_most(tokens=1)}, GrammarError, "not regular"),
    ],
)
def test_faults(arguments: dict[str, object], error: type[Exception], problem: str) -> None:
    """Each is an error when the term is made."""
    with pytest.raises(error, match=problem):
        any_text(**arguments)  # type: ignore[arg-type]
