"""Combinators on terms."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from structgen.grammar.algebra import either, joined, optional, select, text, token, undescribed, with_children
from structgen.grammar.nodes import (
    EMPTY,
    EPSILON,
    Capture,
    Choice,
    Complement,
    Grammar,
    Intersection,
    JsonString,
    Literal,
    Reference,
    Repeat,
    Rules,
    Sequence,
    Shared,
    SpecialToken,
    literal,
)
from structgen.grammar.nodes.description import Described, Description

A, B = Literal(b"a"), Literal(b"b")


def test_select_is_any_one_of_its_options() -> None:
    """A string is a literal; a single option is itself."""
    assert select(["a", b"b", Repeat(A, 1, None)]) == Choice([A, B, Repeat(A, 1, None)])
    assert select(option for option in ["a"]) == A


@pytest.mark.parametrize("options", ["yes", b"yes", A, ["a", 1], [None]])
def test_select_refuses_what_is_no_option(options: object) -> None:
    """A string is not a list of its characters, and a number is not text."""
    with pytest.raises(TypeError, match="select: expected"):
        select(options)  # type: ignore[arg-type]


def test_select_refuses_to_choose_from_nothing() -> None:
    """No options would be the empty language."""
    with pytest.raises(ValueError, match="no options to choose from"):
        select([])


def test_optional_is_the_item_or_nothing() -> None:
    """It works for strings and for terms."""
    assert optional("a") == Choice([A, EPSILON])
    assert optional(Choice([A, B])) == Choice([A, B, EPSILON])


def test_joined_and_either_grow_in_linear_time() -> None:
    """Short terms are spliced as the operators do, long ones are nested instead of copied."""
    assert joined([A, B, EPSILON]) == literal("ab")
    assert joined([]) == EPSILON
    assert either([A, A, Choice([B, EPSILON])]) == Choice([A, B, EPSILON])
    assert either([]) == EMPTY
    term: Grammar = literal("x")
    for _ in range(100):
        term = joined([term, term])
    choices: Grammar = A
    for index in range(20_000):
        choices = either([choices, literal(str(index))])
    assert len(choices.children) <= 32


def test_undescribed_removes_descriptions_at_any_depth() -> None:
    """The rest of the term is the same, and the same object if it had none."""
    described = Described(A, Description(source="regex"))
    assert undescribed(Sequence([described, Described(described, Description(source="x"))])) == Sequence([A, A])
    plain = Sequence([A, Choice([A, B])])
    assert undescribed(plain) is plain
    for _ in range(100_000):
        described = Described(described, Description(source="regex"))
    assert undescribed(described) is A


@pytest.mark.parametrize(
    "node",
    [
        Sequence([A, B]),
        Choice([A, B]),
        Intersection([A, B]),
        Repeat(A, 2, 3),
        Capture("n", A),
        Complement(A),
        A.at_most(tokens=2, characters=3),
        JsonString(A),
        Shared(A),
        Described(A, Description(source="regex")),
        Rules({"r": A, "s": B}, Reference("r")),
    ],
)
def test_children_can_be_replaced_in_every_node(node: Grammar) -> None:
    """The other fields of a node stay."""
    assert with_children(node, list(node.children)) is node
    other = with_children(node, [Literal(b"c") for _ in node.children])
    assert all(child == Literal(b"c") for child in other.children)
    assert with_children(other, list(node.children)) == node


def test_children_must_fit_the_node() -> None:
    """A wrong number of children is refused."""
    with pytest.raises(ValueError, match="Repeat has 1 children; given 2"):
        with_children(Repeat(A, 0, 1), [A, B])


def test_text_and_token_are_terms() -> None:
    """A string is a literal; a token is one symbol, by its text or its id."""
    assert text("é") == literal("é")
    assert text(b"\xff") == Literal(b"\xff")
    assert token("<s>") == SpecialToken("<s>")
    assert token(7) == SpecialToken(7)


@pytest.mark.parametrize("value", [None, 3, ["a"], A])
def test_text_takes_text(value: object) -> None:
    """Numbers are written as text."""
    with pytest.raises(TypeError, match="text: expected str or bytes"):
        text(value)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="lone surrogate"):
        text("\ud800")


@pytest.mark.parametrize(
    ("value", "error"), [("", ValueError), (-1, ValueError), (True, TypeError), (b"<s>", TypeError), (None, TypeError)]
)
def test_token_takes_a_name_or_an_id(value: object, error: type[Exception]) -> None:
    """What names no token is refused at once."""
    with pytest.raises(error, match="token:"):
        token(value)  # type: ignore[arg-type]


def test_operators_take_text_on_either_side() -> None:
    """A literal is joined with its neighbours."""
    assert literal("abc") == "a" + B + b"c"
    assert Choice([A, B]) == ("a" | B)
    assert Intersection([A, B]) == (b"a" & B)
    assert A * 3 == 3 * A == Repeat(A, 3, 3)
    assert Repeat(A, 0, 0) == A * 0
    assert sum([A, B, A], text("")) == literal("aba")


@pytest.mark.parametrize(
    ("mistake", "remedy"),
    [
        (lambda: A or B, "write a | b"),
        (lambda: A and B, "write a | b, a & b"),
        (lambda: not A, "or ~a"),
        (lambda: bool(A), "no truth value"),
        (lambda: A | None, "optional"),
        (lambda: None | A, "optional"),
        (lambda: A + None, "optional"),
        (lambda: sum([A, B]), r"sum\(parts, text\(''\)\)"),
        (lambda: A + 3, "a number as text"),
        (lambda: A | ["b", "c"], "select"),
        (lambda: {"b"} | A, "select"),
        (lambda: f"Name: {A}", "'Name: ' . grammar"),
        (lambda: A * 1.5, "unsupported operand"),
        (lambda: A * True, "unsupported operand"),
        (lambda: A + object(), "unsupported operand"),
        (lambda: literal(5), "literal: expected a text; found 5; write a number"),
        (lambda: optional(3), "expected a text; found 3"),
        (lambda: A.named(5), "the name must be a text; found 5"),
    ],
)
def test_likely_mistakes(mistake: Callable[[], object], remedy: str) -> None:
    """Python's own behaviour is never what was meant here; the error says what to write."""
    with pytest.raises(TypeError, match=remedy):
        mistake()


def test_a_name_is_not_empty() -> None:
    """``captures[""]`` would say nothing."""
    with pytest.raises(ValueError, match=r"named: the name is empty; .*leave named"):
        A.named("")


def test_a_part_cannot_stand_fewer_times_than_never() -> None:
    """This is the count of ``*``."""
    with pytest.raises(ValueError, match="cannot be repeated -1 times"):
        A * -1


def test_the_printed_term_is_there_on_request() -> None:
    """In f-strings it is requested by name."""
    assert f"{A!s} {A!r}" == '"a" <Grammar "a">'
