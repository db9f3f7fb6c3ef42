"""The names of a database as statements may spell them, and those in scope: tables, aliases, columns, outer queries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, final

__all__ = ["AllowedNames", "Expects", "NameScope", "Schema", "TableSource"]


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


@dataclass(frozen=True)
class NameScope:
    """One statement or subquery, up to a position.

    Attributes:
        schema: the names of the database.
        parent: the outer query.
        verb: select, insert, update or delete.
        clause: the last word that began a clause.
        expects: what comes next.
        sources: the tables in scope.
        reach: the first of them that an ON may name.
        table: the key of the last table, while it may be given an alias.
        table_columns: its columns; None if there is no such table.
        used: plain columns of the SELECT list, while no table is known.
        qualified: its columns that were qualified by a table.
        star: whether it has a star.
        outputs: the names of the result's columns.
        item: the name of the current result column; "" before it, None if it has no name.
        written: the columns of a list that were named already.
        brackets: open brackets of this scope: "(", a call, CAST, CASE, a list of columns, or that of a table.
        calling: the kind of the next bracket.
        fresh: whether a bracket, SELECT or CASE is directly before.
        qualifier: the name before the dot.
        is_compound: whether it follows UNION or a similar word.
    """

    schema: Schema
    parent: NameScope | None = None
    verb: str = ""
    clause: str = ""
    expects: Expects = "statement"
    sources: tuple[TableSource, ...] = ()
    reach: int = 0
    table: str | None = None
    table_columns: frozenset[str] | None = None
    used: frozenset[str] = frozenset()
    qualified: frozenset[tuple[str, str]] = frozenset()
    star: bool = False
    outputs: tuple[str, ...] = ()
    item: str | None = ""
    written: frozenset[str] = frozenset()
    brackets: tuple[str, ...] = ()
    calling: str = "("
    fresh: bool = False
    qualifier: str = ""
    is_compound: bool = False

    def _result_columns(self) -> frozenset[str]:
        """The columns of the result that have a unique name."""
        outputs = list(self.outputs)
        if not self.is_compound:
            by_name = {source.name: source.columns for source in self.sources}
            for name in by_name if self.star else ():
                outputs += by_name[name]
            for name, column in self.qualified:
                outputs += by_name[name] if column == "*" else ()
        return frozenset(name for name in outputs if name and outputs.count(name) == 1)

    @property
    def _in_expression(self) -> bool:
        """Whether the position is within an expression, which may continue."""
        if self.brackets:
            return self.brackets[-1] != "columns"
        if self.clause == "set":
            return True
        return self.clause in ("select", "on", "where", "group", "having", "order")

    @property
    def _may_name_table(self) -> bool:
        """Whether an alias may follow."""
        if self.expects != "source" or self.table_columns is None:
            return False
        # Columns that were qualified by their table need its name, so no alias.
        return self.schema.joins or bool(self.sources) or not self.qualified or self.table is None

    @property
    def _takes_any_qualifier(self) -> bool:
        """Whether any name may qualify a column, since the tables are not known yet."""
        return self.schema.joins and self.verb == "select" and self.clause == "select"

    def _tables(self) -> frozenset[str]:
        """The tables that may be named."""
        tables = self.schema.tables
        if self.verb != "select":
            return self.schema.written
        if self.sources:  # a plain column must not become ambiguous
            taken = {column for source in self.sources for column in source.columns & self.used}
            return frozenset(table for table, columns in tables.items() if not columns & taken)
        if self.schema.joins:
            return frozenset(tables)
        return frozenset(self._candidates())

    def _candidates(self) -> Iterable[str]:
        """The tables that have every column of the SELECT list."""
        for table, columns in self.schema.tables.items():
            bare = all(column in columns or self._outer_has(column) for column in self.used)
            if bare and all(name == table for name, _ in self.qualified):
                yield table

    def _target_columns(self) -> frozenset[str]:
        return self.sources[0].columns if self.sources else frozenset()

    def _operands(self) -> frozenset[str]:
        """The columns that may be named without a table."""
        if self.verb == "select" and self.clause == "select":
            tables = (
                self.schema.tables.values() if self.schema.joins else map(self.schema.tables.get, self._candidates())
            )
            own = frozenset[str]().union(*(columns for columns in tables if columns))
            return own | self._outer_columns()
        if self.clause in ("limit", "offset", "values") or (self.clause == "into" and self.verb == "insert"):
            return frozenset()
        if self.is_compound and self.clause == "order":
            return self._result_names()
        sources = self.sources[self.reach :] if self.clause == "on" else self.sources
        own = _once(source.columns for source in sources)
        hidden = frozenset[str]().union(*(source.columns for source in self.sources))
        return own | self._result_names() | (self._outer_columns() - hidden)

    def _result_names(self) -> frozenset[str]:
        """The names of results, which are allowed alone, not within expressions."""
        if self.clause not in ("order", "group") or self.brackets or self.item != "":
            return frozenset()
        # The parts of a compound have tables of their own.
        sources = () if self.is_compound else self.sources
        hidden = frozenset[str]().union(*(source.columns for source in sources))
        return frozenset(name for name in self.outputs if name and self.outputs.count(name) == 1) - hidden

    def _outer_columns(self) -> frozenset[str]:
        """The columns of the outer queries."""
        scope, columns, hidden = self.parent, frozenset[str](), frozenset[str]()
        while scope is not None:
            if scope.expects != "table":
                columns |= _once(source.columns for source in scope.sources) - hidden
            hidden |= frozenset[str]().union(*(source.columns for source in scope.sources))
            scope = scope.parent
        return columns

    def _outer_has(self, column: str) -> bool:
        return column in self._outer_columns()

    def _is_outer(self, name: str) -> bool:
        """Whether it is a table of an outer query, and not of this one."""
        scope = self.parent
        if any(source.name == name for source in self.sources):
            return False
        while scope is not None:
            if scope.expects != "table" and any(source.name == name for source in scope.sources):
                return True
            scope = scope.parent
        return False

    def _qualifiers(self) -> frozenset[str]:
        """The names of tables that may qualify a column."""
        names = set[str]()
        scope: NameScope | None = self.parent
        while scope is not None:
            names |= {source.name for source in scope.sources} if scope.expects != "table" else set()
            scope = scope.parent
        if self.verb == "select" and self.clause == "select":
            return frozenset(names | set(self._candidates()))
        sources = self.sources[self.reach :] if self.clause == "on" else self.sources
        return frozenset(names | {source.name for source in sources if source.name})

    def _members(self, qualifier: str) -> frozenset[str]:
        """The columns that may follow a table's name and a dot."""
        if self._is_outer(qualifier):
            scope = self.parent
            while scope is not None:
                for source in scope.sources:
                    if source.name == qualifier:
                        return source.columns
                scope = scope.parent
        if self.verb == "select" and self.clause == "select":
            if not self.schema.joins:
                return self.schema.tables.get(qualifier, frozenset())
            taken = {column for name, column in self.qualified if name == qualifier and column != "*"}
            fitting = [columns for columns in self.schema.tables.values() if taken <= columns]
            return frozenset[str]().union(*fitting)
        by_name = {source.name: source.columns for source in self.sources}
        return by_name.get(qualifier, frozenset())


def _once(groups: Iterable[frozenset[str]]) -> frozenset[str]:
    """The names that are in exactly one group."""
    seen, twice = frozenset[str](), frozenset[str]()
    for group in groups:
        twice |= seen & group
        seen |= group
    return seen - twice
