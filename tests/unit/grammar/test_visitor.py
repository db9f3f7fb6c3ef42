"""Tables with a row for each node type, and folds over terms."""

import pytest

from structgen.grammar.nodes import Capture, Choice, Grammar, Literal, Reference, Sequence, literal
from structgen.grammar.visitor import NODE_TYPES, NodeTable, RecursiveTerm, fold


def test_a_table_has_a_row_for_each_node_type() -> None:
    """A missing row and a second row are errors that name the pass and the node type."""
    table = NodeTable("demo", {Literal: 1, tuple(kind for kind in NODE_TYPES if kind is not Literal): 2})
    assert table[Literal] == 1
    assert table[Choice] == 2
    assert next(iter(table)) is Literal
    without_capture = tuple(kind for kind in NODE_TYPES if kind is not Capture)
    with pytest.raises(TypeError, match="demo: no row for Capture; say"):
        NodeTable("demo", {without_capture: 1})
    NodeTable("demo", {without_capture: 1}, excluded=[Capture])
    with pytest.raises(TypeError, match="demo: two rows for Capture"):
        NodeTable("demo", {Capture: 1, NODE_TYPES: 2})


def test_a_fold_visits_each_node_once_and_children_from_left_to_right() -> None:
    """Shared nodes have one value, and deep terms need no recursion."""
    a, b = literal("a"), literal("b")
    shared = Sequence([a, b])
    visited: list[Grammar] = []

    def size(node: Grammar, parts: list[int]) -> int:
        visited.append(node)
        return 1 + sum(parts)

    assert fold(Choice([shared, shared, a]), size) == 8
    assert visited == [a, b, shared, Choice([shared, shared, a])]
    deep: Grammar = a
    for _ in range(100_000):
        deep = Capture("x", deep)
    assert fold(deep, lambda _, parts: 1 + sum(parts)) == 100_001


def test_a_fold_reuses_earlier_results() -> None:
    """Nodes with a value are not combined again."""
    a = literal("a")
    results = {id(a): 10}
    assert fold(Sequence([a, a]), lambda _, parts: sum(parts), results=results) == 20
    assert len(results) == 2


def test_a_fold_that_follows_references_refuses_recursion() -> None:
    """The caller defines the dependencies of a node."""
    rules = {"x": Sequence([literal("a"), Reference("y")]), "y": literal("b")}

    def below(node: Grammar) -> tuple[Grammar, ...]:
        return (rules[node.name],) if isinstance(node, Reference) else node.children

    assert fold(Reference("x"), lambda _, parts: 1 + sum(parts), below=below) == 5
    rules["y"] = Choice([literal("b"), Reference("x")])
    with pytest.raises(RecursiveTerm):
        fold(Reference("x"), lambda _, parts: 1 + sum(parts), below=below)
