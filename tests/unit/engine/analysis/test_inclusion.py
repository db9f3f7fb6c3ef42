"""Inclusion of languages, against enumeration of all strings of small languages."""

from __future__ import annotations

from itertools import product

import pytest
from schema_as_written import as_written as json_schema

from structgen.engine.analysis.byte_graph import byte_graphs
from structgen.engine.analysis.inclusion import Inclusion, compare, is_simulated
from structgen.errors import GrammarError, UnsatisfiableGrammar
from structgen.frontends.lark import lark
from structgen.frontends.regex import regex
from structgen.grammar.nodes import Grammar, Reference, Rules, SpecialToken, choice, literal, sequence
from structgen.testing import ReferenceMatcher, language, recursive, small_terms
from structgen.testing.small_scope import ITSELF

LETTERS = b"ab"
LONGEST = 6


def _check(found: Inclusion, one: Grammar, other: Grammar, missing: set[bytes]) -> None:
    """Check that ``missing`` are the strings of ``one`` of up to LONGEST bytes that ``other`` does not accept."""
    if found.witness is None:
        certain = LONGEST if found.checked_bytes is None else found.checked_bytes
        assert all(len(word) > certain for word in missing)
        return
    text = found.witness.text
    if missing:
        assert text in missing
        assert len(text) == min(map(len, missing))
    else:
        assert len(text) > LONGEST
    assert found.witness.offset == ReferenceMatcher(other).accept_bytes(text)
    assert found.witness.is_incomplete == (found.witness.offset == len(text))


REGULAR = [*small_terms(3, [literal("a"), literal("b")])][::2]
CONTEXT_FREE = [recursive(term) for term in small_terms(4, [literal("a"), literal("b"), ITSELF])][::7]


@pytest.mark.parametrize("terms", [REGULAR, CONTEXT_FREE], ids=["regular", "recursive"])
def test_small_languages(terms: list[Grammar]) -> None:
    """Each answer about two small grammars is right, and certain for regular ones."""
    members = {}
    for term in terms:
        found = language(term, LONGEST, LETTERS)
        if found:
            members[term] = found
    certain = 0
    for one, other in list(product(members, members))[:: 1 if terms is REGULAR else 5]:
        try:
            forth, back = compare(one, other, max_pairs=300)
        except UnsatisfiableGrammar:
            continue
        _check(forth, one, other, members[one] - members[other])
        _check(back, other, one, members[other] - members[one])
        certain += (forth.holds is not None) + (back.holds is not None)
        if terms is REGULAR:
            assert forth.holds is not None
            assert back.holds is not None
    assert certain > 100


@pytest.mark.exhaustive
def test_what_is_simulated_is_included() -> None:
    """A simulation proof is never wrong, and is found for a fair share of the inclusions."""
    proofs = 0
    words = {term: language(term, LONGEST, LETTERS) for term in CONTEXT_FREE}
    terms = [term for term in CONTEXT_FREE if words[term]]
    for one, other in product(terms, terms):
        first, second = byte_graphs(one, other)
        if is_simulated(first.constraint, second.constraint):
            assert words[one] <= words[other]
            proofs += 1
    assert proofs > 50


def test_a_shortest_text_is_found_where_it_takes_a_while_to_leave() -> None:
    """The text is a shortest one that only one language has, not the first place where they differ."""
    forth, back = compare(regex("ab{9}|cde{3}"), regex("ax{9}|cde{2}"))
    assert forth.witness is not None
    assert (forth.witness.text, forth.witness.offset, forth.witness.is_incomplete) == (b"cdeee", 4, False)
    assert back.witness is not None
    assert (back.witness.text, back.witness.offset, back.witness.is_incomplete) == (b"cdee", 4, True)


def test_schemas_and_grammars_are_compared() -> None:
    """Descriptions of any kind are compared; equal languages with finitely many states are found equal."""
    schema = json_schema({"type": "string", "pattern": "^(yes|no)$"})
    forth, back = compare(schema, lark('start: "\\"yes\\"" | "\\"no\\""'))
    assert (back.holds, forth.holds) == (True, False)  # a JSON string may be written with escapes
    assert forth.witness is not None
    assert forth.witness.text.count(b"\\") == 1


def test_a_schema_that_lost_a_property() -> None:
    """The example of a refused text is a whole value."""
    properties = {"a": {"type": "integer"}, "b": {"type": "string"}}
    old = json_schema({"type": "object", "properties": properties, "additionalProperties": False})
    del properties["b"]
    new = json_schema({"type": "object", "properties": properties, "additionalProperties": False})
    forth, back = compare(old, new)
    assert back.holds
    assert forth.witness is not None
    assert forth.witness.text == b'{"b":""}'
    assert forth.witness.offset == 2


def test_recursive_grammars_of_equal_rules_are_equal() -> None:
    """Rules with other names, or with two derivations, are followed step by step."""
    text = 'start: e\ne: t ("+" t)*\nt: "x" | "(" e ")"'
    forth, back = compare(lark(text), lark(text.replace("t", "term").replace("sterm", "st").replace("arterm", "art")))
    assert forth.holds
    assert back.holds
    wider, narrower = compare(lark(text), lark(text.replace('"x"', "/[x-z]/")))
    assert wider.holds
    assert narrower.witness is not None
    assert narrower.witness.text in (b"y", b"z")


def test_what_cannot_be_decided_is_told_up_to_a_length() -> None:
    """They are two forms of a language that no proof by rules finds equal."""
    one = Rules(
        {"s": choice("", sequence("a", Reference("s"), "a"), sequence("b", Reference("s"), "b"))}, Reference("s")
    )
    left = Rules(
        {
            "p": choice("", sequence("a", Reference("q")), sequence("b", Reference("p"), "b")),
            "q": sequence(Reference("p"), "a"),
        },
        Reference("p"),
    )
    hard = choice(sequence(one, "c"), sequence(left, "cc"))
    forth, _ = compare(hard, sequence(one, regex("cc?")), max_pairs=200, max_bytes=8)
    assert forth.witness is None
    assert forth.checked_bytes is None or forth.checked_bytes <= 8


def test_special_tokens_are_symbols() -> None:
    """A special token is not text, and is written by its name."""
    forth, _ = compare(sequence("a", SpecialToken("<x>")), literal("a<x>"))
    assert forth.witness is not None
    assert (forth.witness.text, forth.witness.offset) == (b"a<x>", 1)


def test_values_that_must_differ_are_refused() -> None:
    """No automaton recognises them, so no answer would be right."""
    unique = json_schema({"type": "array", "items": {"type": "integer"}, "uniqueItems": True})
    with pytest.raises(GrammarError, match="differ from each other"):
        compare(unique, unique)
