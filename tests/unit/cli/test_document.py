"""The place where a document leaves a language."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, strategies as st

from structgen.engine import compile
from structgen.engine.analysis.byte_graph import byte_vocabulary
from structgen.engine.analysis.departure import Departure, find_departure
from structgen.frontends.json_schema import json_schema
from structgen.frontends.regex import regex
from structgen.grammar.nodes import Grammar, Reference, Rules, choice, sequence


def _find(grammar: Grammar, *chunks: bytes, exact: bool = False, is_json: bool = False) -> Departure | None:
    matcher = compile(grammar, byte_vocabulary(grammar)).matcher()
    return find_departure(matcher, chunks, exact=exact, is_json=is_json)


def _place(departure: Departure | None) -> tuple[int, int, int]:
    assert departure is not None
    return departure.offset, departure.line, departure.column


def test_a_member_has_no_departure() -> None:
    """A document of the language gives None, however it is cut into chunks."""
    grammar = regex("(a|é|\n)*")
    data = "aé\né".encode()
    assert _find(grammar, data) is None
    assert _find(grammar, *(bytes([value]) for value in data)) is None
    assert _find(grammar) is None


def test_place_counts_bytes_lines_and_characters() -> None:
    """The offset is in bytes, the column in characters, and both lines and columns begin at 1."""
    departure = _find(regex("[aé\n]*"), "é\nééx".encode())
    assert _place(departure) == (7, 2, 3)
    assert departure is not None
    assert departure.found == "'x'"
    assert departure.picture == "    ééx\n      ^"


def test_a_refused_character_is_shown_whole() -> None:
    """A character whose second byte is refused is reported as a whole, not the byte in it."""
    departure = _find(regex("[äö]+"), "äü".encode())
    assert _place(departure) == (2, 1, 2)
    assert departure is not None
    assert (departure.found, departure.expected) == ("'ü'", "'ä', 'ö' or the end")


def test_bytes_that_are_no_text() -> None:
    """A byte that is not UTF-8 is named as such."""
    departure = _find(regex(".*"), b"ab\xffc")
    assert _place(departure) == (2, 1, 3)
    assert departure is not None
    assert departure.found == "byte 0xff, which is not UTF-8"


def test_the_end_of_the_document() -> None:
    """A document that is too short becomes invalid at its end."""
    departure = _find(regex("abc"), b"ab")
    assert _place(departure) == (2, 1, 3)
    assert departure is not None
    assert departure.found is None
    assert str(departure) == "the document ends, expected 'c'"


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_one_line_break_at_the_end_may_be_left_over(end: bytes) -> None:
    """Editors end files with a line break; with ``exact`` the line break belongs to the document."""
    grammar = regex("a+")
    assert _find(grammar, b"aa" + end) is None
    assert _find(grammar, b"aa", end) is None
    assert _place(_find(grammar, b"aa" + end, exact=True)) == (2, 1, 3)
    assert _place(_find(grammar, b"aa" + end + end)) == (2, 1, 3)
    assert _find(regex("a\n"), b"a\n") is None


def test_rules_and_pointer_say_where() -> None:
    """Open rules are named outermost first; for JSON the open value is named."""
    inner = sequence("(", Reference("sum"), ")")
    grammar = Rules({"sum": sequence(Reference("item"), "+1"), "item": choice("x", inner)}, Reference("sum"))
    departure = _find(grammar, b"((x+2")
    assert departure is not None
    assert departure.rules[0] == "sum"
    schema = json_schema({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}})
    departure = _find(schema, b'{"a": [1, "x"]}', is_json=True)
    assert departure is not None
    assert departure.pointer == "/a/1"
    assert "in the value of /a/1" in str(departure)


_pieces = st.lists(st.text("ab\né😀", max_size=40), max_size=4)


@given(_pieces, st.integers(0, 60))
def test_place_agrees_with_re(pieces: list[str], repeats: int) -> None:
    """The first departure from a character class is where ``re`` says, over any chunks and long lines."""
    text = "".join(pieces) + "ab\n😀" * repeats * 100 + "é" * 3 + "x" + "a" * 50
    data = text.encode()
    chunks = [data[start : start + 4_999] for start in range(0, len(data), 4_999)]
    found = re.match("[ab\né😀]*", text)
    assert found is not None
    before = text[: found.end()]
    expected = (len(before.encode()), before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)
    assert _place(_find(regex("[ab\né😀]*"), *chunks)) == expected


def test_a_document_without_end_is_left_early() -> None:
    """Chunks are read only as long as the document stays in the language."""

    def endless() -> object:
        while True:
            yield b"\0" * 10_000

    matcher = compile(regex("a+"), byte_vocabulary(regex("a+"))).matcher()
    departure = find_departure(matcher, endless(), exact=False)  # type: ignore[arg-type]
    assert _place(departure) == (0, 1, 1)
