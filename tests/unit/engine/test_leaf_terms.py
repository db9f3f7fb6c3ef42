"""Terms of leaves: an engine caches the leaves that many schemas share, except those with messages."""

from __future__ import annotations

import json

import pytest

from structgen.engine import Vocabulary, compile
from structgen.engine.lowering import shared_engine
from structgen.errors import VocabularyError
from structgen.frontends.json_schema import json_schema
from structgen.grammar.nodes import Shared
from structgen.testing.reference import ReferenceMatcher

NUMBER = {"type": "integer", "minimum": 5, "maximum": 7}


def text_of(name: str) -> str:
    """A schema with the shared leaf."""
    schema = {"type": "object", "properties": {name: NUMBER}, "required": [name], "additionalProperties": False}
    return json.dumps(schema, ensure_ascii=False)


def vocabulary_without(missing: bytes) -> Vocabulary:
    """One token for each byte except the given ones."""
    return Vocabulary([bytes([byte]) for byte in range(256) if byte not in missing])


def kept_leaves(vocabulary: Vocabulary) -> int:
    """The number of leaves that the engine of a vocabulary caches."""
    return sum(not isinstance(node, Shared) for node, _ in shared_engine(vocabulary).lowered.values())


def test_a_leaf_is_made_once() -> None:
    """A second schema reuses the term of the first one's leaf, and has the right language."""
    vocabulary = vocabulary_without(b"")
    compile(json_schema(text_of("first")), vocabulary)
    known = kept_leaves(vocabulary)
    assert known > 0
    grammar = json_schema(text_of("second"))
    constraint = compile(grammar, vocabulary)
    assert kept_leaves(vocabulary) == known
    for text in ('{"second":5}', '{"second":7}', '{"second":8}', '{"second":4}', '{"second":55}', '{"first":5}'):
        matcher, reference = constraint.matcher(), ReferenceMatcher(grammar)
        accepted = all(matcher.accept_bytes(bytes([byte])) for byte in text.encode()) and matcher.is_accepting
        assert accepted == (reference.accept_bytes(text.encode()) and reference.is_accepting)


def test_nothing_is_kept_where_a_byte_is_missing() -> None:
    """A missing byte is reported for every grammar that lacks it; a cached leaf could not report it again."""
    vocabulary = vocabulary_without(b"\xc3")
    for name in ("\u00e9", "\u00e9\u00e9"):
        with pytest.raises(VocabularyError, match=r"no token holds byte b'\\xc3'"):
            compile(json_schema(text_of(name)), vocabulary)
    assert kept_leaves(vocabulary) == 0
