"""The names of a database as statements may spell them, and the names that a position of a statement allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, final

__all__ = ["AllowedNames", "Expects", "Schema", "TableSource"]

Expects: TypeAlias = Literal[
    "statement",  # its first word
    "operand",  # a name or value, or the start of an expression
    "after",  # what follows an operand
    "sorted",  # what follows the name of a result, which begins no expression
    "comparison",  # what follows ``x NOT``
    "predicate",  # what follows ``x IS``
    "table",
    "source",  # what follows a table
    "join",  # what follows LEFT and similar words
    "by",  # what follows GROUP and ORDER
    "nulls",  # FIRST or LAST
    "alias",  # what follows AS
    "member",  # the column after a dot
    "column",  # a column of a list or assignment
    "word",  # a type or a parameter, which is not checked
]


@final
@dataclass(frozen=True)
class Schema:
    """The names of a database as statements may spell them.

    Attributes:
        tables: for each table, by the key of its name, the keys of its columns.
        written: the keys of the tables that statements may change.
        key: the key of a name, given whether it is quoted: equal keys are the same name to the database.
        plain: whether a name with this key may be written without quotes.
        functions: the names of functions that expressions may call, in lower case.
        prefixes: the words that may begin an expression.
        joins: whether the columns of a SELECT list may come from several tables, and be qualified by aliases.
        needs_alias: whether a derived table must have an alias.
        comparisons: comparison words of this database beyond the common ones.
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
    """A table in scope: the key of its name or alias, and its columns."""

    name: str
    columns: frozenset[str]


@final
@dataclass(frozen=True)
class AllowedNames:
    """The names and words that a position allows.

    Attributes:
        keys: names of the catalogue and aliases.
        words: words that are not names, in lower case.
        calls: names of functions, which a bracket must follow.
        free: whether any other word is allowed, too.
    """

    keys: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset()
    calls: frozenset[str] = frozenset()
    free: bool = False
