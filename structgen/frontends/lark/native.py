"""The native reader of plain grammars: rules, terminals, templates, and what they import from Lark's library.

Most grammars are nothing else, and for them the engine's library reads the text directly.  What it makes is what
:mod:`structgen.frontends.lark` makes, left recursion removed, which it is tested against; grammars that say more, and
grammars that are at fault, are left to that one (``docs/adr/0018-plain-lark-grammars-natively.md``).
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
_MAX_LEAF_LENGTH: Final = 2_000  # characters; what is longer is kept for nobody


def read(text: str, start: str, limits: Limits) -> FlatGrammar | None:
    """The program of a grammar without left recursion; ``None`` if the grammar is not plain.

    Complexity: O(len(text)) and the instances of templates.
    """
    return _READER.read(text, start, limits.grammar_nodes, limits.nesting)


class Deferred:
    """A grammar that is read here; the other reader makes its term and its report when somebody asks for them."""

    def __init__(self, make: Callable[[], Grammar]) -> None:
        """Prepare.

        Args:
            make: reads the grammar as the other reader does.
        """
        self._make = make
        self._made: Described | None = None

    def item(self) -> Grammar:
        """The term."""
        return self._described().item

    def description(self) -> Description:
        """Where it came from."""
        return self._described().description

    def _described(self) -> Described:
        if self._made is None:
            made = self._make()
            if not isinstance(made, Described):
                raise TypeError("a Lark grammar comes without its description")
            self._made = made
        return self._made


def _leaf(token: str) -> tuple[FlatGrammar, bool] | None:
    """The program of a string or regexp that is not plain, and whether it may be empty."""
    if len(token) > _MAX_LEAF_LENGTH:
        return None
    try:
        pattern = pattern_of(
            GrammarSource(token), Token("STRING" if token[0] == '"' else "REGEXP", token, 0), _DEFAULT_LIMITS
        )
        if not is_plain(pattern):
            return None  # what follows it in its terminal decides where it ends
        term = plain(pattern)
        return flatten(term, {}, None, _DEFAULT_LIMITS.grammar_nodes), Nullability({})(term)
    except StructgenError:
        return None  # the other reader says what is wrong, and where


_READER: Final = _native.LarkReader(builtin_texts, _leaf)
