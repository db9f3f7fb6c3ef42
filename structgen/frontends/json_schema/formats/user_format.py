"""Formats of the caller: a name for ``format``, and a grammar of the decoded string.

A grammar that is not regular is rewritten to spell its strings inside a JSON string.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Final, Protocol

from structgen.errors import GrammarError
from structgen.frontends.json_schema.json_string import ANY_SPELLING, spelled_class
from structgen.grammar.algebra import with_children
from structgen.grammar.analysis import is_regular
from structgen.grammar.flattening import recognizes
from structgen.grammar.nodes import (
    ANY_CHAR,
    ByteClass,
    Capture,
    CharClass,
    Complement,
    Distinct,
    Grammar,
    Intersection,
    JsonString,
    Label,
    Literal,
    Repeat,
    Shared,
    SpecialToken,
    TokenSet,
    postorder,
    sequence,
)
from structgen.grammar.nodes.description import Described
from structgen.grammar.scopes import resolve

__all__ = ["StringFormat", "UserFormat", "plain_text", "spelled_content", "user_formats"]

_spellings: Final = lru_cache(maxsize=1024)(spelled_class)


def spelled_content(grammar: Grammar, name: str) -> Grammar:
    """The text between the quotes of the JSON strings whose decoded text is in ``grammar``.

    Args:
        grammar: a closed term.
        name: the name of the format in messages.

    Raises:
        GrammarError: it contains something other than text: bytes that are not UTF-8, special tokens, ``Distinct`` or
            labels.
    """
    return _rewritten(plain_text(resolve(grammar, through_shared=True), name), name)


def plain_text(grammar: Grammar, name: str) -> Grammar:
    """An equal term for use inside a JSON string.

    Captures and descriptions are removed, because their texts would contain escapes; JSON strings inside are expanded
    to characters.

    Args:
        grammar: a closed term.
        name: the name of the format in messages.

    Raises:
        GrammarError: such a string contains bytes that are not UTF-8.
    """
    made: dict[int, Grammar] = {}
    for node in postorder(grammar):
        children = [made[id(child)] for child in node.children]
        if isinstance(node, (Capture, Described)):
            made[id(node)] = children[0]
        elif isinstance(node, JsonString):
            made[id(node)] = sequence('"', _rewritten(children[0], name), '"')
        else:
            made[id(node)] = with_children(node, children)
    return made[id(grammar)]


def _rewritten(root: Grammar, name: str) -> Grammar:
    made: dict[int, Grammar] = {}
    for node in postorder(root):
        children = [made[id(child)] for child in node.children]
        match node:
            case Literal(data=data):
                made[id(node)] = sequence(*(_spellings(((ord(c), ord(c)),)) for c in _decoded(data, name)))
            case CharClass(ranges=ranges):
                made[id(node)] = _spellings(ranges)
            case ByteClass(ranges=ranges) if all(high < 0x80 for _, high in ranges):
                made[id(node)] = _spellings(ranges)
            case Complement():
                made[id(node)] = Intersection([ANY_SPELLING, Complement(children[0])])
            case ByteClass() | SpecialToken() | TokenSet() | Distinct() | Label():
                raise _no_text(type(node).__name__, name)
            case _:
                made[id(node)] = with_children(node, children)
    return made[id(root)]


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _no_text(f"the bytes {data!r:.40}", name) from None


def _no_text(found: str, name: str) -> GrammarError:
    return GrammarError(
        f"json schema format {name!r:.60}",
        "its grammar contains something other than text",
        evidence=f"found {found}",
        remedy="write it with literals and classes of characters",
    )


class StringFormat(Protocol):
    """The interface of a format to string assertions; compared by identity.

    Attributes:
        name: its name in schemas.
        is_regular: whether it has a ``language``, which can be combined with others.
        unbounded: why no text is certainly outside; empty if that can be decided.
    """

    name: str
    is_regular: bool
    unbounded: str

    @property
    def language(self) -> Grammar:
        """The regular language of the decoded texts that may be written."""

    @property
    def outer(self) -> Grammar:
        """A regular superset of the texts of the format."""

    @property
    def string(self) -> Grammar:
        """The JSON strings."""

    def admits(self, text: str) -> bool | None:
        """Whether ``text`` has the format; ``None`` if unknown."""


class UserFormat:
    """A format by its grammar."""

    def __init__(self, name: str, grammar: Grammar) -> None:
        """Take the grammar as it is; see :func:`user_formats`."""
        self.name = name
        self.is_regular = is_regular(grammar)
        self.unbounded = "" if self.is_regular else "which is not regular"
        self.language = grammar

    @property
    def outer(self) -> Grammar:
        """A regular superset of the texts of the format."""
        return self.language if self.is_regular else Repeat(ANY_CHAR)

    @cached_property
    def string(self) -> Grammar:
        """The JSON strings; always the same object, so that an engine can cache it."""
        if self.is_regular:
            return Shared(JsonString(self.language))
        return Shared(sequence('"', spelled_content(self.language, self.name), '"'))

    def admits(self, text: str) -> bool:
        """Whether ``text`` has the format."""
        return recognizes(self.language, text)


def user_formats(given: Mapping[str, Grammar]) -> Mapping[str, StringFormat]:
    """The formats of a mapping from names to grammars.

    Raises:
        TypeError: a name is not a ``str``, or a value is not a grammar.
        GrammarError: a grammar has special tokens or free references.
    """
    for name, grammar in given.items():
        if not isinstance(name, str) or not isinstance(grammar, Grammar):
            raise TypeError(
                f"formats: expected names with grammars, found {name!r:.40} with a {type(grammar).__name__}; "
                "make a grammar with regex(...), lark(...) or select(...)"
            )
    return {name: _format_of(name, grammar) for name, grammar in given.items()}


@lru_cache(maxsize=256)
def _format_of(name: str, grammar: Grammar) -> UserFormat:
    if any(isinstance(node, (SpecialToken, TokenSet)) for node in postorder(grammar)):
        raise GrammarError(
            f"json schema format {name!r:.60}",
            "its grammar has special tokens, which are no text",
            remedy="leave them out of the grammar",
        )
    return UserFormat(name, plain_text(grammar, name))
