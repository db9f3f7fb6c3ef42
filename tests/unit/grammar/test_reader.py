"""Reading the text of a term: layout, comments, and every error with its place."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from structgen.errors import GrammarSyntaxError
from structgen.grammar.nodes import (
    ByteClass,
    CharClass,
    Choice,
    Literal,
    Reference,
    Rules,
    Sequence,
)
from structgen.grammar.reader import parse

A, B = Literal(b"a"), Literal(b"b")


def test_whitespace_and_comments_are_free() -> None:
    """Layout has no meaning."""
    assert parse('# first\n"a"   # second\n\t"b"') == Sequence([A, B])
    assert parse('"a""b"') == Sequence([A, B])


def test_nothing_is_simplified() -> None:
    """Adjacent literals and nested choices stay as they were written."""
    assert parse('"a" "b"') != Literal(b"ab")
    assert parse('("a" | "b") | "a"') == Choice([Choice([A, B]), A])


def test_bindings_are_shared_objects() -> None:
    """All uses of a `let` are one object, and a `let` may use earlier ones."""
    term = parse('let $1 = "a"; $2 = $1 $1; in $2 $2')
    assert isinstance(term, Sequence)
    assert term.items[0] is term.items[1]
    assert term == Sequence([Sequence([A, A]), Sequence([A, A])])


def test_rules_nest_and_may_end_in_a_semicolon() -> None:
    """The body of rules extends to the end of its bracket."""
    inner = Rules({"y": B}, Choice([Reference("y"), Reference("x")]))
    assert parse('rules { x = "a"; } in rules { y = "b" } in y | x') == Rules({"x": A}, inner)
    assert parse('"a" (rules { y = "b" } in y | x)') == Sequence([A, inner])


def test_classes() -> None:
    """Hyphens, carets and brackets are escaped; a class may be negated; ranges need not be sorted."""
    assert parse(r"[z\-a-c\^\]]") == CharClass([(45, 45), (93, 94), (97, 99), (122, 122)])
    assert parse(r"[^\u{0}-\u{10ffff}]") == CharClass([])
    assert parse(r"[\u{0}-\u{10ffff}]") == parse(".") == parse("[^]")
    assert parse(r"b[^\x80-\xff]") == ByteClass([(0, 127)])


@pytest.mark.parametrize(
    ("text", "span", "problem"),
    [
        ("", (0, 0), "expected a term, found the end of the text"),
        ('"a" |', (5, 5), "expected a term, found the end of the text"),
        ('"a" | | "b"', (6, 7), "expected a term, found '|'"),
        ('("a"', (0, 1), "expected ')' to close this"),
        ('"a")', (3, 4), "expected an operator, a term or the end, found ')'"),
        ('"a', (0, 1), "string is not closed"),
        ("[a", (0, 1), "class is not closed"),
        ("<a", (0, 1), "quoted name is not closed"),
        ('"a" % "b"', (4, 5), "unexpected character '%'"),
        ('"\\q"', (1, 3), "escape '\\\\q' is not known"),
        ('"\\u{110000}"', (1, 11), "escape '\\\\u{110000}' is not known"),
        ('"\\u{d800}"', (1, 9), "surrogate has no UTF-8 form"),
        ('"\ud800"', (1, 2), "surrogate has no UTF-8 form"),
        ('"a"**', (4, 5), "a repetition of a repetition needs parentheses"),
        ("*", (0, 1), "expected a term before the repetition"),
        ('"a"{3,2}', (3, 8), "the bounds 3..2 contain no count"),
        ('"a"{' + "9" * 5000 + "}", (3, 5005), "number has too many digits"),
        ("[b-a]", (3, 4), "range is in the wrong order"),
        ("[a-]", (2, 3), "hyphen is not between two ends of a range"),
        ("[-a]", (1, 2), "hyphen is not between two ends of a range"),
        (r"[\xff]", (1, 5), "raw byte in a class of characters"),
        ("b[é]", (2, 3), "character beyond ASCII in a class of bytes"),
        (r"<a\xff>", (2, 6), "raw byte in a name"),
        ("$1", (0, 2), "$1 is not bound before its use"),
        ('let $1 = $1; in "a"', (9, 11), "$1 is not bound before its use"),
        ('let $1 = "a"; $1 = "a"; in "a"', (14, 16), "expected a new name"),
        ('rules { x = "a"; x = "b" } in x', (17, 18), "rule 'x' is bound twice"),
        ('rules { x "a" } in x', (10, 13), "expected '=' after the name of a rule"),
        ('rules { x = "a" } x', (18, 19), "expected 'in' after the rules"),
        ('"a" rules { } in "b"', (4, 9), "rules inside a term need parentheses"),
        ("in", (0, 2), "write <in> for the rule of this name"),
        ('token("a"', (9, 9), "expected ')'"),
        ("token(x)", (6, 7), "expected the text or the id of a special token"),
        ("~", (1, 1), "expected a term"),
        ("@(x)", (1, 2), "expected the name of a capture"),
    ],
)
def test_errors_have_their_place(text: str, span: tuple[int, int], problem: str) -> None:
    """Each malformed text gives one error, at the wrong characters."""
    with pytest.raises(GrammarSyntaxError) as caught:
        parse(text)
    assert problem in caught.value.problem
    assert caught.value.span == span
    assert caught.value.text == text


@given(st.text(st.sampled_from('"ab[]()|&~*+?{},1$=;.@<>-^\\ \nlet in rules'), max_size=30))
@settings(max_examples=500, deadline=None)
def test_any_text_is_read_or_refused(text: str) -> None:
    """For any text, the reader succeeds or raises its syntax error."""
    try:
        parse(text)
    except GrammarSyntaxError as error:
        start, end = error.span
        assert 0 <= start <= end <= len(text)


@pytest.mark.parametrize("text", ["(" * 20_000, "~" * 20_000, '"a"' + ")" * 20_000, "rules{x=" * 10_000])
def test_unbalanced_nesting_is_refused(text: str) -> None:
    """Deep and unfinished texts give a syntax error, not a recursion error."""
    with pytest.raises(GrammarSyntaxError):
        parse(text)
