"""Descriptions of what may come next."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given, strategies as st

from structgen.engine import Matcher, compile
from structgen.engine.analysis.byte_graph import byte_vocabulary
from structgen.engine.analysis.departure import expectation_of, quoted_bytes
from structgen.frontends.regex import regex
from structgen.grammar.nodes import CharClass, Grammar, SpecialToken, choice


def _after(grammar: Grammar, text: bytes = b"") -> Matcher:
    matcher = compile(grammar, byte_vocabulary(grammar)).matcher()
    assert matcher.accept_bytes(text) == len(text)
    return matcher


@pytest.mark.parametrize(
    ("grammar", "text", "expected"),
    [
        (regex("[0-9]+"), "", "'0'..'9'"),
        (regex("[0-9]+"), "7", "'0'..'9' or the end"),
        (regex("yes|no|maybe"), "", "'maybe', 'no' or 'yes'"),
        (regex("yes|no|maybe"), "y", "'es'"),
        (regex("yes"), "yes", "the end"),
        (regex("[ \\n]*a"), "", "'a' or white space"),
        (regex(" a|b"), "", "'b' or ' a'"),
        (regex("x[äö]|y"), "", "'x' or 'y'"),
        (regex("[äöü]x"), "", "'ä', 'ö' or 'ü'"),
        (regex("[a-zα-ω]"), "", "'a'..'z' or 'α'..'ω'"),
        (regex("."), "", "'\\x00'..'\\t', '\\x0b'..'\\x7f' or any character beyond ASCII"),
        (regex("(?s:.)é"), "é", "'é'"),
        (regex(r"\w"), "", "'0'..'9', 'A'..'Z', '_', 'a'..'z' or some characters beyond ASCII"),
        (regex("a{1,2}"), "aa", "the end"),
        (choice("a", SpecialToken("<|call|>")), "", "'a' or the token <|call|>"),
        (regex("[acegikmoqsuwyACEGIKM]"), "", "'A', 'C', 'E', 'G', 'I', 'K', 'M', 'a', 'c', 'e', 'g', 'i' or 8 more"),
    ],
)
def test_expectation_reads_well(grammar: Grammar, text: str, expected: str) -> None:
    """Ranges, forced texts, characters beyond ASCII, special tokens and the end are named."""
    assert str(expectation_of(_after(grammar, text.encode()))) == expected


def test_expectation_in_the_middle_of_a_character() -> None:
    """Inside a character, bytes are named."""
    assert str(expectation_of(_after(regex("[é-ï]"), b"\xc3"))) == "byte 0xa9..0xaf"


@given(st.sets(st.integers(0x80, 0x10FFFF).filter(lambda point: not 0xD800 <= point < 0xE000), min_size=1, max_size=8))
def test_few_characters_are_all_named(points: set[int]) -> None:
    """A few characters beyond ASCII are named one by one, or as ranges of neighbours."""
    parts = expectation_of(_after(CharClass([(point, point) for point in points]))).parts
    named: set[int] = set()
    for part in parts:
        ends = [ord(ast.literal_eval(end)) for end in part.split("..")]
        named |= set(range(ends[0], ends[-1] + 1))
    assert named == points


def test_describing_leaves_the_matcher_as_it_is() -> None:
    """The matcher keeps its state and its history."""
    matcher = _after(regex("(ab|cd)é+"), b"a")
    history = matcher.history_length
    expectation_of(matcher)
    assert matcher.history_length == history
    assert matcher.accept_bytes("bé".encode()) == 3


def test_long_texts_are_cut() -> None:
    """A text that is too long is cut and marked."""
    assert quoted_bytes(b"x" * 50, 10) == "'xxxxxxxxxx'..."
    assert quoted_bytes("aä".encode()[:2]) == "'a'"
    assert quoted_bytes(b"a\xff") == "'a\\\\xff'"
