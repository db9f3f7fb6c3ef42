"""All small grammars and all short tokens: the scope of the exhaustive tests.

Most faults show in a small case, so trying all small cases finds most faults (RE2's exhaustive tests do the
same).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Final, TypeAlias

from structgen.grammar import nodes as ir
from structgen.grammar.nodes import Grammar

__all__ = ["BOOLEAN", "ITSELF", "REGULAR", "STAR", "Operator", "byte_vocabulary", "recursive", "small_terms"]

Operator: TypeAlias = tuple[int, Callable[..., Grammar]]
"""How many terms an operator takes, and how it makes one of them."""

STAR: Final[Operator] = (1, lambda item: ir.Repeat(item, 0, None))
"""Any number of times."""

REGULAR: Final[tuple[Operator, ...]] = (
    (2, lambda first, second: ir.Sequence((first, second))),
    (2, lambda one, other: ir.Choice((one, other))),
    STAR,
    (1, lambda item: ir.Repeat(item, 1, 2)),
)
"""Sequence, choice, star and a counted repetition: with :data:`ITSELF` among the leaves, context-free too."""

BOOLEAN: Final[tuple[Operator, ...]] = (
    (2, lambda one, other: ir.Intersection((one, other))),
    (1, ir.Complement),
)
"""Intersection and complement, for terms without recursion."""

ITSELF: Final[Grammar] = ir.Reference("itself")
"""The leaf that means the whole term, bound by :func:`recursive`."""


def small_terms(
    max_nodes: int, leaves: Iterable[Grammar], operators: Iterable[Operator] = REGULAR
) -> Iterator[Grammar]:
    """Yield every term of at most ``max_nodes`` nodes, small ones first.

    Complexity: the number of terms grows about fourfold with each node, for two leaves and :data:`REGULAR`.

    >>> from structgen.grammar.nodes import literal
    >>> [sum(1 for _ in small_terms(size, [literal("a"), literal("b")])) for size in (1, 2, 3, 4)]
    [2, 6, 22, 86]
    """
    choices = tuple(operators)
    of_size: list[list[Grammar]] = [[], list(leaves)]
    yield from of_size[1]
    for size in range(2, max_nodes + 1):
        of_size.append(
            [
                make(*parts)
                for arity, make in choices
                for sizes in product(range(1, size), repeat=arity)
                if sum(sizes) == size - 1
                for parts in product(*(of_size[part_size] for part_size in sizes))
            ]
        )
        yield from of_size[size]


def recursive(term: Grammar) -> Grammar:
    """The rule whose expression is ``term``, in which :data:`ITSELF` means the rule."""
    return ir.Rules({"itself": term}, ITSELF)


def byte_vocabulary(letters: bytes, max_length: int) -> list[bytes]:
    """List the tokens of a vocabulary of all words over ``letters``; id 0 has no bytes and is meant for EOS.

    >>> byte_vocabulary(b"ab", 2)
    [b'', b'a', b'b', b'aa', b'ab', b'ba', b'bb']
    """
    return [bytes(word) for length in range(max_length + 1) for word in product(letters, repeat=length)]
