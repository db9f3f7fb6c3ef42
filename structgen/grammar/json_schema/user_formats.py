"""Formats that the caller defines: a name for ``format``, and a grammar that the decoded text belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Protocol

from structgen.errors import GrammarError
from structgen.grammar.analysis import is_regular
from structgen.grammar.json_schema.string_content import plain_text, spelled_content
from structgen.grammar.nodes import (
    ANY_CHAR,
    Grammar,
    JsonString,
    Repeat,
    Shared,
    SpecialToken,
    TokenSet,
    postorder,
    sequence,
)
from structgen.grammar.recognition import recognizes

__all__ = ["StringFormat", "UserFormat", "user_formats"]


class StringFormat(Protocol):
    """What strings ask of a format; equal where it is the same object.

    Attributes:
        name: what a schema calls it.
        is_regular: whether there is a ``language`` to combine with others.
        unbounded: why nothing can be said of the texts outside; empty if it can.
    """

    name: str
    is_regular: bool
    unbounded: str

    @property
    def language(self) -> Grammar:
        """The decoded texts that are written, regular."""

    @property
    def outer(self) -> Grammar:
        """A regular language that holds all texts of the format."""

    @property
    def string(self) -> Grammar:
        """The JSON strings."""

    def admits(self, text: str) -> bool | None:
        """Whether ``text`` belongs to the format; ``None``: that is not known."""


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
        """A regular language that holds all texts of the format."""
        return self.language if self.is_regular else Repeat(ANY_CHAR)

    @cached_property
    def string(self) -> Grammar:
        """The JSON strings; one object, so that an engine knows it again."""
        if self.is_regular:
            return Shared(JsonString(self.language))
        return Shared(sequence('"', spelled_content(self.language), '"'))

    def admits(self, text: str) -> bool:
        """Whether ``text`` belongs to the format."""
        return recognizes(self.language, text)


def user_formats(given: Mapping[str, Grammar]) -> Mapping[str, StringFormat]:
    """The formats of a mapping from names to grammars.

    Raises:
        TypeError: a name is no ``str``, or what it stands for is no grammar.
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
    return UserFormat(name, plain_text(grammar))
