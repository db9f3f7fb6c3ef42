"""The text of a term: its form, and that every term survives writing and reading."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest
from hypothesis import given, settings, strategies as st
from machine_load import at_most

from structgen.grammar import algebra, left_recursion, printer, reader, scopes
from structgen.grammar.nodes import (
    ANY_CHAR,
    EMPTY,
    EPSILON,
    ByteClass,
    Capture,
    CharClass,
    Choice,
    Complement,
    Distinct,
    Grammar,
    Intersection,
    JsonString,
    Literal,
    Permutation,
    Reference,
    Repeat,
    Rules,
    Sequence,
    Shared,
    SpecialToken,
    literal,
)
from structgen.grammar.nodes.description import Described, Description
from structgen.grammar.printer import to_text
from structgen.grammar.reader import parse

A, B = Literal(b"a"), Literal(b"b")

any_text = st.text(st.characters(codec=None), max_size=8)  # lone surrogates included
names = st.one_of(st.sampled_from(["e", "t", "let", "in", "b", "token", "", "a.b", "a.", "9", "x>y"]), any_text)
byte_ranges = st.tuples(st.integers(0, 255), st.integers(0, 255)).map(lambda pair: (min(pair), max(pair)))
code_points = st.one_of(st.integers(0, 0x10FFFF), st.sampled_from([0x2D, 0x5B, 0x5C, 0x5D, 0x5E, 0xD7FF, 0xE000]))
char_ranges = st.tuples(code_points, code_points).map(lambda pair: (min(pair), max(pair)))
leaves = st.one_of(
    st.binary(max_size=6).map(Literal),
    st.text(max_size=6).map(literal),
    st.lists(byte_ranges, max_size=4).map(ByteClass),
    st.lists(char_ranges, max_size=4).map(CharClass),
    names.map(Reference),
    st.one_of(any_text, st.integers(-1, 10**20)).map(SpecialToken),
)


def _larger(terms: st.SearchStrategy[Grammar]) -> st.SearchStrategy[Grammar]:
    items = st.lists(terms, max_size=3)
    bounds = st.tuples(st.integers(0, 3), st.one_of(st.none(), st.integers(0, 3)))
    return st.one_of(
        items.map(Sequence),
        items.map(Choice),
        items.map(Intersection),
        terms.map(Complement),
        terms.map(JsonString),
        terms.map(Shared),
        st.builds(Distinct, terms, st.booleans()),
        st.builds(Capture, names, terms),
        st.builds(lambda item, b: Repeat(item, b[0], None if b[1] is None else b[0] + b[1]), terms, bounds),
        st.builds(lambda r, o, rest, sep, b: _permutation(r, o, rest, sep, *b), items, items, terms, terms, bounds),
        st.builds(Rules, st.dictionaries(names, terms, max_size=3), terms),
        st.tuples(terms, st.lists(st.booleans(), min_size=1, max_size=9)).map(_doubled),
    )


def _permutation(
    required: list[Grammar], optional: list[Grammar], rest: Grammar, separator: Grammar, least: int, more: int | None
) -> Grammar:
    most = None if more is None else max(least, len(required)) + more
    return Permutation(required, optional, rest, separator, least, most)


def _doubled(choice: tuple[Grammar, list[bool]]) -> Grammar:
    """A term that holds one sub-term up to 2**9 times."""
    term, kinds = choice
    for is_sequence in kinds:
        term = Sequence([term, term]) if is_sequence else Choice([term, term])
    return term


terms = st.recursive(leaves, _larger, max_leaves=12)


@given(terms)
@settings(max_examples=600, deadline=None)
def test_every_term_survives_the_round_trip(term: Grammar) -> None:
    """Reading the written text gives the same structure, degenerate nodes and shared terms included."""
    assert parse(to_text(term)) == term


@given(terms, st.integers(1, 80))
@settings(max_examples=300, deadline=None)
def test_a_cut_text_has_the_length_asked_for(term: Grammar, length: int) -> None:
    """A cut text is a prefix of the full text, on one line."""
    cut = to_text(term, max_length=length)
    whole = to_text(term, max_length=10**9)
    assert cut == (whole if len(whole) <= length else whole[: length - 1] + "…")
    assert "\n" not in whole
    assert parse(whole) == term


@pytest.mark.parametrize(
    ("term", "text"),
    [
        (literal("a").many(1, 3, sep=CharClass([(44, 44)])), '"a" ([,] "a"){0,2}'),
        (Choice([Sequence([A, Repeat(Choice([A, B]), 0, None)]), EPSILON]), '"a" ("a" | "b")* | ""'),
        (Intersection([Choice([A, B]), Sequence([A, B])]), '("a" | "b") & "a" "b"'),
        (Complement(Repeat(Complement(A), 1, None)), '~(~"a")+'),
        (Repeat(Repeat(A, 0, 1), 2, 2), '("a"?){2}'),
        (Repeat(A, 3, None), '"a"{3,}'),
        (Literal("é\n\x00\U0001f600".encode() + b'\xff"\\'), '"é\\n\\u{0}\U0001f600\\xff\\"\\\\"'),
        (CharClass([(97, 122), (48, 48), (45, 46), (94, 94)]), r"[\-.0\^a-z]"),
        (CharClass([(0, 33), (35, 91), (93, 0x10FFFF)]), r'[^"\\]'),
        (ANY_CHAR, "."),
        (ByteClass([(128, 255), (10, 10)]), r"b[\n\x80-\xff]"),
        (ByteClass([(0, 9), (11, 255)]), r"b[^\n]"),
        (Capture("year", CharClass([(48, 57)])), "@year([0-9])"),
        (SpecialToken("<|im_end|>"), 'token("<|im_end|>")'),
        (SpecialToken(2), "token(2)"),
        (JsonString(Choice([A, B])), 'json("a" | "b")'),
        (Shared(A), 'shared("a")'),
        (Distinct(A), 'distinct("a")'),
        (Sequence([Distinct(A, is_spare=True), A]), 'distinct?("a") "a"'),
        (Reference("in"), "<in>"),
        (Reference("white space"), "<white space>"),
        (EPSILON, '""'),
        (EMPTY, "(|)"),
        (Sequence([]), "()"),
        (Intersection([]), "(&)"),
        (Choice([A]), '(| "a")'),
        (Sequence([Sequence([A, B]), A]), '("a" "b") "a"'),
    ],
)
def test_text_of_each_kind_of_term(term: Grammar, text: str) -> None:
    """The text is plain, with parentheses only where precedence needs them."""
    assert to_text(term) == text
    assert parse(text) == term


def test_rules_are_written_one_a_line() -> None:
    """A grammar with rules reads like EBNF; its repr stays on one line."""
    nested = Choice([A, Sequence([Literal(b"("), Reference("s"), Literal(b")")])])
    term = Rules({"s": nested, "t": B}, Reference("s"))
    assert str(term) == 'rules {\n  s = "a" | "(" s ")";\n  t = "b"\n} in s'
    assert repr(term) == '<Grammar rules { s = "a" | "(" s ")"; t = "b" } in s>'


def test_a_shared_term_is_written_once() -> None:
    """A DAG of 200 doublings, 2**200 leaves as a tree, stays linear, and so does the term read back."""
    term: Grammar = literal("a text that is long enough to be bound to a name")
    for _ in range(200):
        term = Sequence([term, term])
    text = to_text(term)
    assert len(text) < 5_000
    assert text.startswith('let\n  $1 = "a text that is long enough')
    assert parse(text) == term
    assert len(repr(term)) == 180 + len("<Grammar >")


def test_equal_terms_have_equal_text_whatever_they_share() -> None:
    """Sharing is decided by content: one object twice and two equal objects are written alike."""
    one = Sequence([Literal(b"x" * 40), A])
    other = Sequence([Literal(b"x" * 40), A])
    assert to_text(Choice([one, one])) == to_text(Choice([one, other]))


def test_a_description_is_not_written() -> None:
    """A described term is written as its item."""
    described = Described(A, Description(source="regex"))
    assert to_text(Sequence([described, described, B])) == '"a" "a" "b"'


def test_bindings_are_numbered_by_structure() -> None:
    """Dependencies come first, left to right; a term that is short once its parts are bound is not bound itself."""
    x, y = Literal(b"x" * 40), Literal(b"y" * 40)
    inner = Choice([x, y])
    text = to_text(Sequence([inner, x, inner, y]))
    assert text == f'let\n  $1 = "{"x" * 40}";\n  $2 = "{"y" * 40}";\nin\n($1 | $2) $1 ($1 | $2) $2'


@pytest.mark.parametrize(
    "wrap",
    [Complement, lambda term: Choice([term, B]), lambda term: Rules({"x": term}, Reference("x"))],
)
def test_nesting_is_only_data(wrap: type[Grammar]) -> None:
    """A term nested 5,000 deep is written and read, without recursion and in seconds."""
    term: Grammar = A
    for _ in range(5_000):
        term = wrap(term)
    with at_most(5):
        assert parse(to_text(term)) == term
    with at_most(0.1):
        assert len(repr(term)) < 200


def test_repr_of_a_giant_term_is_fast() -> None:
    """A cut text reads no more of the term than it shows."""
    term = Choice([Literal(b"a" * 50_000_000), *(Literal(b"%d" % index) for index in range(100_000))])
    with at_most(0.1):
        assert len(to_text(term, max_length=50)) == 50


def test_a_length_of_zero_is_refused() -> None:
    """A text must have at least one character."""
    with pytest.raises(ValueError, match="max_length must be positive"):
        to_text(A, max_length=0)


@pytest.mark.parametrize("module", [printer, reader, algebra, scopes, left_recursion])
def test_examples_in_docstrings(module: ModuleType) -> None:
    """The examples are right."""
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
