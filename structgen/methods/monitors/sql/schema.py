"""The names of a database as statements may spell them, and what may stand at a position of a statement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, final

__all__ = ["AllowedNames", "Expects", "Schema", "TableSource"]

Expects: TypeAlias = Literal[
    "statement",  # its first word
    "operand",  # a name or value, or what begins an expression
    "after",  # what follows one
    "sorted",  # what follows the name of a result; no expression is made
    "comparison",  # what follows ``x NOT``
    "predicate",  # what follows ``x IS``
    "table",
    "source",  # what follows a table
    "join",  # what follows LEFT and its like
    "by",  # what follows GROUP and ORDER
    "nulls",  # FIRST or LAST
    "alias",  # what follows AS
    "member",  # the column after a dot
    "column",  # that of a list or assignment
    "word",  # a type or a parameter, which nobody looks at
]


@final
@dataclass(frozen=True)
class Schema:
    """The names of a database as statements may spell them.

    Attributes:
        tables: for each table, by the key of its name, the keys of its columns.
        written: the keys of the tables that statements may change.
        key: of a name, and whether it is in quotes: equal for what the database takes for the same name.
        plain: whether a name with this key may be written without quotes.
        functions: the names of functions that expressions may call, in small letters.
        prefixes: the words that may begin an expression.
        joins: whether the columns of a SELECT list may come from several tables, and be named by aliases.
        needs_alias: whether a derived table must have one.
        comparisons: words that compare besides those of every database.
    """

    tables: Mapping[str, frozenset[str]]
    written: frozenset[str]
    key: Callable[[str, bool], str]
    plain: Callable[[str], bool]
    functions: frozenset[str]
    prefixes: frozenset[str]
    joins: bool
    needs_alias: bool
    comparisons: frozenset[str]
    columns: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", frozenset().union(*self.tables.values()))


@final
@dataclass(frozen=True)
class TableSource:
    """A table in scope: the key that it goes by, and its columns."""

    name: str
    columns: frozenset[str]


@final
@dataclass(frozen=True)
class AllowedNames:
    """What may stand at a place.

    Attributes:
        keys: names of the catalogue and aliases.
        words: words that are no names, in small letters.
        calls: names of functions, which a bracket must follow.
        free: whether any other word may stand there.
    """

    keys: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset()
    calls: frozenset[str] = frozenset()
    free: bool = False
