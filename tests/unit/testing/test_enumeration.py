"""The exhaustive enumerations contain what they claim, each item once."""

from __future__ import annotations

from structgen.grammar.nodes import Complement, Grammar, Intersection, Rules, literal, postorder, repeat
from structgen.testing import byte_vocabulary, language, recursive, small_terms
from structgen.testing.small_scope import BOOLEAN, ITSELF, REGULAR


def size(term: Grammar) -> int:
    """The number of nodes of a term, counted at each of its places."""
    sizes: dict[int, int] = {}
    for node in postorder(term):
        sizes[id(node)] = 1 + sum(sizes[id(child)] for child in node.children)
    return sizes[id(term)]


def test_terms_come_once_each_and_small_ones_first() -> None:
    """No term is repeated, none is too large, and sizes never fall."""
    terms = list(small_terms(5, [literal("a"), ITSELF]))
    sizes = [size(term) for term in terms]
    assert len(set(terms)) == len(terms)
    assert sizes == sorted(sizes)
    assert sizes[-1] == 5


def test_terms_number_what_counting_says() -> None:
    """With n leaves, 2 binary and 2 unary operators: t(1) = n, t(k) = 2 t(k-1) + 2 sum t(i) t(k-1-i)."""
    expected = [0, 3]
    for k in range(2, 6):
        expected.append(2 * expected[k - 1] + 2 * sum(expected[i] * expected[k - 1 - i] for i in range(1, k - 1)))
    leaves = [literal("a"), literal("b"), ITSELF]
    assert sum(1 for _ in small_terms(5, leaves)) == sum(expected)


def test_boolean_operators_are_among_the_terms() -> None:
    """Each requested operator occurs."""
    kinds = {type(term) for term in small_terms(3, [literal("a")], [*REGULAR, *BOOLEAN])}
    assert {Complement, Intersection} <= kinds


def test_a_recursive_term_is_its_own_rule() -> None:
    """The leaf that stands for the term means the whole language."""
    term = recursive(literal("a") + ITSELF | "b")
    assert isinstance(term, Rules)
    assert language(term, 3, b"ab") == {b"b", b"ab", b"aab"}


def test_a_byte_vocabulary_has_every_short_word_once() -> None:
    """Its words are those of a repeated class, the empty one first."""
    tokens = byte_vocabulary(b"abc", 3)
    assert tokens[0] == b""
    assert len(tokens) == len(set(tokens)) == 1 + 3 + 9 + 27
    assert set(tokens) == language(repeat(literal("a") | "b" | "c", 0, 3), 3, b"abc")
