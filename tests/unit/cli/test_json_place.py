"""The JSON value in which a text breaks off."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from structgen.engine.analysis.departure import pointer_at_end


@pytest.mark.parametrize(
    ("prefix", "pointer"),
    [
        (b"", ""),
        (b'"a', ""),
        (b"{", ""),
        (b'{"a"', "/a"),
        (b'{"a": 1', "/a"),
        (b'{"a": 1, ', ""),
        (b'{"a": [1, {"b": "}],', "/a/1/b"),
        (b'["[", "\\', "/1"),
        (b'{"a[', ""),
        (b'{"a": {}, "x/y~z": tr', "/x~1y~0z"),
        (b"[[], [], ", "/2"),
        (b'{"\\u00e9\\"": ', '/é"'),
        (b'{"a": 1}', ""),
    ],
)
def test_pointer_of_a_prefix(prefix: bytes, pointer: str) -> None:
    """Names and indices of open containers make the pointer; brackets in strings do not count."""
    assert pointer_at_end(prefix) == pointer


_values = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


def _resolve(document: Any, pointer: str) -> Any:
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        document = document[int(name)] if isinstance(document, list) else document[name]
    return document


@pytest.mark.exhaustive
@given(_values, st.data())
def test_pointer_resolves_in_the_whole_document(document: Any, data: st.DataObject) -> None:
    """Wherever a document is cut, the pointer leads to one of its values."""
    text = json.dumps(document).encode()
    end = data.draw(st.integers(0, len(text)))
    pointer = pointer_at_end(text[:end])
    if text[end - 1 : end] in (b"[", b","):  # the next item has not started, and there may be none
        pointer = pointer.rpartition("/")[0]
    _resolve(document, pointer)
