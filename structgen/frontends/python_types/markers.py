"""Grammars as annotations of Python types: ``Annotated[str, Regex(r"[A-Z]{3}")]``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from structgen.frontends.lark import lark
from structgen.frontends.regex import DialectName, regex
from structgen.grammar.nodes import Grammar
from structgen.grammar.pydantic_string import validated

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

__all__ = ["Lark", "Regex"]


class _Marker:
    """Metadata of ``str`` in ``Annotated``."""

    __slots__ = ()
    grammar: Grammar

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return validated(self.grammar, repr(self), source, handler)


@dataclass(frozen=True, slots=True)
class Regex(_Marker):
    """A string that ``pattern`` matches from end to end: ``Annotated[str, Regex(r"[A-Z]{3}")]``.

    Attributes:
        pattern: the regular expression.
        dialect: ``"python"``, ``"ecma"`` or ``"rust"``.
        grammar: its grammar.

    Raises:
        GrammarError: as :func:`structgen.regex` raises.
    """

    pattern: str
    dialect: DialectName = "python"
    grammar: Grammar = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "grammar", regex(self.pattern, dialect=self.dialect))


@dataclass(frozen=True, slots=True)
class Lark(_Marker):
    """A string of a Lark grammar: ``Annotated[str, Lark('start: "a" start "b" | "ab"')]``.

    Attributes:
        text: the grammar, without relative imports.
        start: the start rule.
        grammar: its grammar.

    Raises:
        GrammarError: as :func:`structgen.lark` raises.
    """

    text: str
    start: str = "start"
    grammar: Grammar = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "grammar", lark(self.text, start=self.start))
