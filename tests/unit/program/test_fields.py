"""The start and end of fields, against ``json.loads`` of the finished text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from structgen.program.json_cursor import FieldEnd, FieldStart, JsonCursor, Path, path_text

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def parts(value: Any, path: Path = ()) -> list[tuple[Path, Any]]:
    """Every part of a value in the order in which the parts end."""
    found: list[tuple[Path, Any]] = []
    if isinstance(value, dict):
        for key, held in value.items():
            found += parts(held, (*path, key))
    if isinstance(value, list):
        for index, held in enumerate(value):
            found += parts(held, (*path, index))
    return [*found, (path, value)]


@given(VALUES, st.sampled_from([None, 1]), st.booleans(), st.integers(1, 7))
def test_every_part_is_found_once_with_its_bytes(value: Any, indent: int | None, is_ascii: bool, step: int) -> None:
    data = json.dumps(value, indent=indent, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")
    cursor = JsonCursor()
    events: list[FieldStart | FieldEnd] = []
    for at in range(0, len(data), step):
        copy = cursor.copy()
        events += cursor.feed(data[at : at + step])
        copy.feed(data[at:])  # leaves the original unchanged
    events += cursor.finish()
    ends = [event for event in events if isinstance(event, FieldEnd)]
    starts = [event for event in events if isinstance(event, FieldStart)]
    assert [(end.path, end.value) for end in ends] == parts(value)
    assert sorted((start.path, start.start) for start in starts) == sorted((end.path, end.start) for end in ends)
    for end in ends:
        assert data[end.start : end.end] == end.data


def test_a_part_ends_with_the_byte_that_ends_it() -> None:
    cursor = JsonCursor()
    seen = []
    for byte in b'{"a": [12, true], "b": "x"}':
        seen += [(bytes([byte]), event.path) for event in cursor.feed(bytes([byte])) if isinstance(event, FieldEnd)]
    assert seen == [(b",", ("a", 0)), (b"e", ("a", 1)), (b"]", ("a",)), (b'"', ("b",)), (b"}", ())]


def test_open_numbers() -> None:
    cursor = JsonCursor()
    cursor.feed(b'{"a": 1')
    assert cursor.open_number
    cursor.feed(b', "b": t')
    assert not cursor.open_number


@pytest.mark.parametrize(
    ("path", "text"), [((), ""), (("a",), "a"), (("a", 0, "b"), "a[0].b"), ((1, "x"), "[1].x"), (("a b", "c"), "a b.c")]
)
def test_paths_as_text(path: Path, text: str) -> None:
    assert path_text(path) == text
