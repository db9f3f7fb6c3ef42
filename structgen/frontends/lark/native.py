"""The native reader of simple grammars: rules, terminals, templates, and imports from Lark's library.

Most grammars are simple, and native code reads them directly (``docs/adr/0018-simple-lark-grammars-natively.md``).
Reference implementation: the Python reader in :mod:`structgen.frontends.lark`, which also reads all other grammars and
reports errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from structgen_kernels import _native

from structgen.errors import StructgenError
from structgen.frontends.grammar_source import GrammarSource
from structgen.frontends.lark.lazy import is_plain, plain
from structgen.frontends.lark.library import builtin_texts
from structgen.frontends.lark.regexp import pattern_of
from structgen.frontends.lark.syntax import Token
from structgen.grammar.analysis import Nullability
from structgen.grammar.flattening import flatten
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar
from structgen.grammar.nodes.description import Described, Description

if TYPE_CHECKING:
    from collections.abc import Callable

    from structgen_kernels._native import FlatGrammar

__all__ = ["Deferred", "read"]

_DEFAULT_LIMITS: Final = Limits()
_MAX_LEAF_LENGTH: Final = 2_000  # characters


def read(text: str, start: str, limits: Limits) -> FlatGrammar | None:
    """Return the flat program of a grammar, left recursion removed; None if the grammar is not simple.

    Complexity: linear in the text and the instances of templates.
    """
    return _READER.read(text, start, limits.grammar_nodes, limits.nesting)


class Deferred:
    """The term and the report of a natively read grammar, made by the Python reader on first use."""

    def __init__(self, make: Callable[[], Grammar]) -> None:
        self._make = make
        self._made: Described | None = None

    def item(self) -> Grammar:
        """Return the term."""
        return self._described().item

    def description(self) -> Description:
        """Return the description, with the report."""
        return self._described().description

    def _described(self) -> Described:
        if self._made is None:
            made = self._make()
            if not isinstance(made, Described):
                raise TypeError("a Lark grammar comes without its description")
            self._made = made
        return self._made


def _leaf(token: str) -> tuple[FlatGrammar, bool] | None:
    """Return the flat program of a string or regexp, and whether it may be empty; None if the reader must give up."""
    if len(token) > _MAX_LEAF_LENGTH:
        return None
    try:
        pattern = pattern_of(
            GrammarSource(token), Token("STRING" if token[0] == '"' else "REGEXP", token, 0), _DEFAULT_LIMITS
        )
        if not is_plain(pattern):
            return None  # a lazy repetition: the rest of its terminal decides where it ends
        term = plain(pattern)
        return flatten(term, {}, None, _DEFAULT_LIMITS.grammar_nodes), Nullability({})(term)
    except StructgenError:
        return None  # the Python reader reports the error


_READER: Final = _native.LarkReader(builtin_texts, _leaf)
