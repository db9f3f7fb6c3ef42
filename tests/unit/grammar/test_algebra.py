"""Combinators on terms."""

from __future__ import annotations

import pytest

from structgen.grammar.algebra import either, joined, optional, select, undescribed, with_children
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
    literal,
)
from structgen.grammar.report import Described, Description

A, B = Literal(b"a"), Literal(b"b")


def test_select_is_any_one_of_its_options() -> None:
    """Text stands for itself; a single option is itself."""
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
    """For text and for terms."""
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
    """The rest of the term is the same, and the very same where it held none."""
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
        JsonString(A),
        Shared(A),
        Described(A, Description(source="regex")),
        Rules({"r": A, "s": B}, Reference("r")),
    ],
)
def test_children_can_be_replaced_in_every_node(node: Grammar) -> None:
    """What a node holds beside its children stays."""
    assert with_children(node, list(node.children)) is node
    other = with_children(node, [Literal(b"c") for _ in node.children])
    assert all(child == Literal(b"c") for child in other.children)
    assert with_children(other, list(node.children)) == node


def test_children_must_fit_the_node() -> None:
    """A wrong number of children is refused."""
    with pytest.raises(ValueError, match="Repeat has 1 children; given 2"):
        with_children(Repeat(A, 0, 1), [A, B])
