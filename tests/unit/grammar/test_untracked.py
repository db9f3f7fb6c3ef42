"""Python's cycle collector does not look at terms that are kept."""

from __future__ import annotations

import gc
import sysconfig
import weakref

import pytest

from structgen.frontends.json_schema import forget_known, json_schema
from structgen.frontends.regex import search_language
from structgen.grammar.flattening import untrack
from structgen.grammar.nodes import Choice, Grammar, Literal, Reference, Repeat, Rules, Sequence, postorder
from structgen.grammar.nodes.description import Described, Description

pytestmark = pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="free-threaded Python tracks all objects"
)


def tracked(term: Grammar) -> list[Grammar]:
    return [node for node in postorder(term) if gc.is_tracked(node)]


def test_untracks_nodes_and_their_tuples() -> None:
    digit = Choice(Literal(bytes([48 + each])) for each in range(10))
    term = Rules({"list": Sequence([digit, Repeat(Reference("list"), 0, 1)])}, Reference("list"))
    untrack(term)
    assert tracked(term) == []
    assert not gc.is_tracked(term.rules)
    assert not gc.is_tracked(digit.items)


def test_descriptions_stay_tracked() -> None:
    described = Described(Literal(b"a"), Description("test", ()))
    term = Sequence([described, Literal(b"b")])
    untrack(term)
    assert list(map(id, tracked(term))) == [id(described.item), id(described)]
    assert not gc.is_tracked(term)


def test_nodes_live_no_longer() -> None:
    class Source(Description):
        pass

    source = Source("test", ())
    alive = weakref.ref(source)
    term = Sequence([Described(Literal(b"a"), source), Literal(b"b")])
    untrack(term)
    del source, term
    assert alive() is None


def test_deep_terms_need_no_recursion() -> None:
    term: Grammar = Literal(b"a")
    for _ in range(100_000):
        term = Sequence([term, Literal(b"b")])
    untrack(term)
    assert not gc.is_tracked(term)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "multipleOf": 7, "contains": {}},
        {"type": "number", "minimum": 3, "maximum": 1234.5},
        {"type": "array", "contains": {"type": "string", "pattern": "^a+$"}},
        {"propertyNames": {"pattern": "^[a-c]{2,8}$"}, "additionalProperties": {"multipleOf": 11, "type": "integer"}},
    ],
)
def test_cached_grammars_of_schemas(schema: dict[str, object]) -> None:
    forget_known()
    grammar = json_schema(schema)
    assert isinstance(grammar, Described)
    assert [node for node in tracked(grammar.item) if not isinstance(node, Described)] == []


def test_cached_patterns() -> None:
    assert tracked(search_language("^(ab|cd)*[x-z]{3,9}$")) == []
