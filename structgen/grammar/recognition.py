"""Whether a text belongs to a grammar, whatever it is made of; asked byte by byte of an engine of its own."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Final

from structgen_kernels import _native

from structgen.grammar.flattening import flatten
from structgen.grammar.left_recursion import remove_left_recursion
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar

__all__ = ["is_empty", "recognizes"]

_LIMITS: Final = Limits()
_BYTES: Final = 256


def recognizes(grammar: Grammar, text: str) -> bool:
    """Whether ``text`` is a member of a closed grammar without special tokens.

    Raises:
        GrammarError: the grammar is not closed, or not regular where it must be.
        LimitExceeded: a bound of the engine was reached.

    >>> from structgen.frontends.lark import lark
    >>> nested = lark('start: "(" start ")" | "x"')
    >>> recognizes(nested, "((x))"), recognizes(nested, "((x)")
    (True, False)
    """
    try:
        data = text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which no grammar over text has
        return False
    constraint = _constraint(grammar)
    if constraint is None:
        return False
    matcher = _native.Matcher(constraint)
    return matcher.accept_bytes(data) == len(data) and matcher.is_accepting


def is_empty(grammar: Grammar) -> bool:
    """Whether a closed grammar without special tokens has no members.

    Raises:
        GrammarError: the grammar is not closed, or not regular where it must be.
        LimitExceeded: a bound of the engine was reached.

    >>> from structgen.frontends.regex import regex
    >>> is_empty(regex("a+") & regex("b+")), is_empty(regex("a+") & regex("a|b"))
    (True, False)
    """
    return _constraint(grammar) is None


@lru_cache(maxsize=64)
def _constraint(grammar: Grammar) -> _native.Constraint | None:
    """The grammar over single bytes; ``None`` if it has no members."""
    engine = _native.Engine(_trie(), _BYTES)
    bounds = _native.Limits()
    flat = flatten(grammar, {}, None, _LIMITS.grammar_nodes)
    found = _native.couple(engine, flat, (), bounds)
    if found[2]:
        flat = flatten(grammar, {}, None, _LIMITS.grammar_nodes, lambda rules: remove_left_recursion(rules, _LIMITS))
        found = _native.couple(engine, flat, (), bounds)
    return found[0]


@cache
def _trie() -> _native.TokenTrie:
    return _native.TokenTrie([bytes([byte]) for byte in range(_BYTES)])
