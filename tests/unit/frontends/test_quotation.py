"""The substrings of a text, against ``in`` and a regular expression."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest
from hypothesis import given, strategies as st

from structgen.engine import Vocabulary, compile
from structgen.frontends.free_text import occurrences, substring_of, substrings
from structgen.grammar.nodes import EMPTY, Grammar, JsonString
from structgen.testing.small_scope import language

TEXTS = st.text(alphabet='ab _.-é1\n"\\', max_size=14)


def _accepts(grammar: Grammar, text: str, vocabulary: Vocabulary) -> bool:
    matcher = compile(grammar, vocabulary).matcher()
    data = text.encode()
    return matcher.accept_bytes(data) == len(data) and matcher.is_accepting


def _parts(text: str) -> set[str]:
    return {text[start:end] for start in range(len(text)) for end in range(start + 1, len(text) + 1)}


def _quotable(text: str) -> set[str]:
    """The substrings with whole words, by the boundaries of ``re``."""
    found = set()
    for part in _parts(text):
        pattern = (
            ("" if not re.match(r"\w", part) else r"(?<!\w)")
            + re.escape(part)
            + ("" if not re.search(r"\w\Z", part) else r"(?!\w)")
        )
        if not part[0].isspace() and not part[-1].isspace() and re.search(pattern, text):
            found.add(part)
    return found


@given(TEXTS.filter(bool), st.booleans())
def test_members_are_what_occurs(text: str, whole_words: bool) -> None:
    """Among all substrings and all short texts over the same letters, exactly the substrings are accepted."""
    expected = _quotable(text) if whole_words else _parts(text)
    grammar = substrings(text, whole_words=whole_words)
    if not expected:
        assert grammar == EMPTY
        return
    vocabulary = Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])
    matcher = compile(grammar, vocabulary).matcher()
    others = {"".join(letters) for count in range(3) for letters in product(sorted(set(text)), repeat=count)}
    for part in _parts(text) | others:
        matcher.reset()
        data = part.encode()
        is_member = matcher.accept_bytes(data) == len(data) and matcher.is_accepting
        assert is_member == (part in expected), part


@given(TEXTS, st.booleans())
def test_occurrences_are_where_the_parts_are(text: str, whole_words: bool) -> None:
    """Each accepted text occurs at the places that are returned; any other text occurs nowhere."""
    expected = _quotable(text) if whole_words else _parts(text)
    for part in _parts(text):
        found = list(occurrences(text, part, whole_words=whole_words))
        assert bool(found) == (part in expected)
        assert all(text[start:end] == part for start, end in found)
        assert found == sorted(set(found))
        if not whole_words:
            assert len(found) == sum(text.startswith(part, at) for at in range(len(text)))


def test_words_with_marks_are_whole(json_vocabulary: Vocabulary) -> None:
    text = "हिन्दी cafe\u0301 x"
    assert _accepts(substrings(text), "हिन्दी", json_vocabulary)
    assert not _accepts(substrings(text), "ह", json_vocabulary)
    assert not _accepts(substrings(text), "cafe", json_vocabulary)


def test_nothing_can_be_quoted_from_nothing() -> None:
    assert substrings("") == EMPTY
    assert substrings(" \n") == EMPTY
    assert list(occurrences("ab", "")) == []
    with pytest.raises(ValueError, match="surrogate"):
        substrings("\ud800")


@pytest.mark.parametrize(
    "text", ["word " * 2_000, " ".join(map(str, range(1_000_000, 1_001_250)))], ids=["same", "all"]
)
def test_long_texts(text: str, json_vocabulary: Vocabulary) -> None:
    """A quotation of 10,000 characters is followed to its end, and the whole text is a quotation too."""
    quoted = text.strip()
    constraint = compile(JsonString(substrings(text)), json_vocabulary)
    matcher = constraint.matcher()
    data = b'"' + quoted.encode() + b'"'
    assert matcher.accept_bytes(data) == len(data)
    assert matcher.is_accepting
    matcher.reset()
    row = np.zeros((1, (json_vocabulary.size + 31) // 32), dtype=np.int32)
    matcher.accept_bytes(b'"')
    matcher.fill_mask(row)
    firsts = {text[start] for start, _ in occurrences(text, quoted[:4])}
    assert all(row[0, ord(first) + 1 >> 5] >> (ord(first) + 1 & 31) & 1 for first in firsts)
    assert constraint.min_tokens() <= 9


LINES = st.lists(st.text(alphabet="ab ", max_size=3), min_size=1, max_size=5).map("\n".join)


@given(LINES.filter(lambda text: text.strip("\n")))
def test_lines_are_quoted_whole(text: str) -> None:
    """Runs of lines are accepted, except the empty text."""
    lines = text.split("\n")
    pairs = [(start, end) for start in range(len(lines)) for end in range(start + 1, len(lines) + 1)]
    expected = {"\n".join(lines[start:end]) for start, end in pairs} - {""}
    size = max(len(part.encode()) for part in expected)
    if size <= 7:
        assert language(substring_of(text, "line"), size, b"ab \n") == {part.encode() for part in expected}
    vocabulary = Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])
    grammar = substring_of(text, "line")
    assert {part for part in _parts(text) if _accepts(grammar, part, vocabulary)} == expected


def test_units() -> None:
    """Words and characters are those of ``substrings``."""
    assert substring_of("to be") == substrings("to be")
    assert substring_of("to be", "character") == substrings("to be", whole_words=False)


@pytest.mark.parametrize(
    ("document", "unit", "error"),
    [
        ("", "word", ValueError),
        (" \n", "word", ValueError),
        ("a", "token", ValueError),
        (b"a", "word", TypeError),
    ],
)
def test_nothing_to_quote(document: str, unit: str, error: type[Exception]) -> None:
    """It is an error of the caller, raised before the compilation."""
    with pytest.raises(error, match="substring_of:"):
        substring_of(document, unit)  # type: ignore[arg-type]
