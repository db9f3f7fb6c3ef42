"""The SELECT statements that a given database can answer, as a grammar with the names of its catalogue.

The grammar is that of ``grammars/sql_select``, once for each table with that table's columns, and once for each
requested join, with the columns of its tables after the tables' names. So no statement names a table or column that
does not exist or is not in scope; SQLite prepares every one of them.

For names in free text, with aliases and subqueries, use
:func:`structgen.methods.monitors.sql.catalogue.sql_names`, which checks each hypothesis while it is generated; a
grammar costs nothing beyond its token mask.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from structgen.frontends.lark import lark
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar
from structgen.methods.monitors.sql.catalogue import Catalogue, read_catalogue

__all__ = ["select_grammar"]

_DEFAULT_LIMITS: Final = Limits()

# A reference is a column of the tables in scope.
_STATEMENT: Final = r"""
_select{reference, source}: _columns{reference} " FROM " source _filters{reference} [_order{reference}] [_limit]
_filters{reference}: [_where{reference}] [_group{reference}]
_columns{reference}: "SELECT " ["DISTINCT "] ("*" | _list{_column{reference}})
_where{reference}: " WHERE " _condition{_operand{reference}}
_group{reference}: " GROUP BY " _list{reference} [" HAVING " _condition{_aggregated{reference}}]
_order{reference}: " ORDER BY " _list{_sorted{reference}}
_limit: " LIMIT " INTEGER [" OFFSET " INTEGER]
_column{reference}: _value{_aggregated{reference}} [" AS \"" NAME "\""]
_sorted{reference}: reference [" ASC" | " DESC"]

_condition{item}: _condition{item} " OR " _conjunction{item} | _conjunction{item}
_conjunction{item}: _conjunction{item} " AND " _test{item} | _test{item}
_test{item}: "NOT " _test{item}
           | "(" _condition{item} ")"
           | _value{item} (" = " | " <> " | " < " | " <= " | " > " | " >= ") _value{item}
           | _value{item} " IS " ["NOT "] "NULL"
           | _value{item} [" NOT"] (" LIKE " _value{item} | " BETWEEN " _value{item} " AND " _value{item})
           | _value{item} [" NOT"] " IN (" _list{_value{item}} ")"

_value{item}: _value{item} (" + " | " - " | " || ") _product{item} | _product{item}
_product{item}: _product{item} (" * " | " / ") item | item
_operand{reference}: reference | _any_operand{_operand{reference}}
_aggregated{reference}: reference
                      | _any_operand{_aggregated{reference}}
                      | AGGREGATE "(" _value{_operand{reference}} ")"
                      | "COUNT(" ("*" | ["DISTINCT "] _value{_operand{reference}}) ")"
_any_operand{item}: NUMBER
                  | STRING
                  | FUNCTION "(" _value{item} ")"
                  | "COALESCE(" _value{item} ", " _list{_value{item}} ")"
                  | "CASE" (" WHEN " _condition{item} " THEN " _value{item})+ [" ELSE " _value{item}] " END"
                  | "(" _value{item} ")"

_list{item}: item (", " item)*

AGGREGATE: "MIN" | "MAX" | "SUM" | "AVG"
FUNCTION: "ABS" | "LENGTH" | "LOWER" | "ROUND" | "TRIM" | "UPPER"
NAME: /[a-z][a-z0-9_]{0,30}/
INTEGER: /0|[1-9][0-9]{0,8}/
NUMBER: /-?(0|[1-9][0-9]{0,8})(\.[0-9]{1,6})?/
STRING: /'([^'\x00-\x1f]|''){0,200}'/
"""


def select_grammar(source: Any, *, joins: Iterable[Sequence[str]] = (), limits: Limits = _DEFAULT_LIMITS) -> Grammar:
    """Make the grammar of SELECT statements over the tables of a database.

    Keywords are upper case, words are separated by one blank, and a name is spelled as in the catalogue, in double
    quotes if it needs them. A statement reads one table, whose columns are plain or qualified by its name; or the
    tables of one of ``joins``, in that order, whose columns are qualified. An ``ON`` has columns of the tables up to
    it.

    Left out: aliases of tables, subqueries, set operations. Types are not checked: PostgreSQL refuses
    ``"a" || 1 + name``, which SQLite accepts, and columns next to an aggregate that no GROUP BY has.

    Args:
        source: a ``Catalogue``, or an argument of ``read_catalogue``: an engine, a connection or a URL.
        joins: which tables may be joined, each a sequence of two or more names.
        limits: bounds on the size of the grammar.

    Raises:
        ValueError: no table has a column, or a join names an unknown table, one table twice, or only one table.
        LimitExceeded: there are too many tables or columns.

    Complexity: linear in the columns of the tables and of the joins.

    >>> from structgen.methods.monitors.sql.catalogue import Catalogue
    >>> shop = Catalogue("sqlite", {"users": ("id", "name"), "orders": ("id", "user", "total")})
    >>> grammar = select_grammar(shop, joins=[("users", "orders")])
    >>> from structgen.testing import ReferenceMatcher
    >>> m = ReferenceMatcher(grammar)
    >>> m.accept_bytes(b"SELECT name, total FROM users")  # users has no total, orders no name
    13
    >>> m = ReferenceMatcher(grammar)
    >>> m.accept_bytes(b"SELECT users.name FROM users JOIN orders ON users.id = orders.user WHERE orders.total > 9")
    89
    """
    catalogue = source if isinstance(source, Catalogue) else read_catalogue(source)
    tables = {name: columns for name, columns in catalogue.tables.items() if columns}
    if not tables:
        raise ValueError("select_grammar: the catalogue has no table with a column")
    numbers = {name: number for number, name in enumerate(tables)}
    starts, rules = [], []
    for name, number in numbers.items():
        table = _spelled(catalogue, name)
        columns = [_spelled(catalogue, column) for column in tables[name]]
        rules += [
            f"table_{number}: {_text(table)}",
            f"qualified_{number}: {_text(table + '.')} ({_alternatives(columns)})",
            f"column_{number}: {_alternatives(columns)} | qualified_{number}",
        ]
        starts.append(f"_select{{column_{number}, table_{number}}}")
    for number, join in enumerate(joins):
        _check_join(join, numbers)
        members = [numbers[name] for name in join]
        parts = [f"table_{members[0]}"]
        for count, member in enumerate(members[1:], 2):
            scope = f"scope_{number}_{count}"
            rules.append(f"{scope}: {' | '.join(f'qualified_{each}' for each in members[:count])}")
            parts.append(f'[" LEFT"] " JOIN " table_{member} " ON " _condition{{_operand{{{scope}}}}}')
        rules.append(f"joined_{number}: {' '.join(parts)}")
        starts.append(f"_select{{scope_{number}_{len(members)}, joined_{number}}}")
    return lark("\n".join([f"start: {' | '.join(starts)}", *rules, _STATEMENT]), limits=limits)


def _check_join(join: Sequence[str], numbers: dict[str, int]) -> None:
    unknown = [name for name in join if name not in numbers]
    if isinstance(join, str) or len(join) < 2 or len(set(join)) < len(join) or unknown:
        names = ", ".join(list(numbers)[:8])
        raise ValueError(f"select_grammar: a join needs two or more different tables of {names}; found {join!r}")


def _spelled(catalogue: Catalogue, name: str) -> str:
    """A name as spelled in a statement, in quotes if it needs them."""
    return name if catalogue.is_plain(catalogue.key(name, quoted=True)) else '"' + name.replace('"', '""') + '"'


def _alternatives(names: Iterable[str]) -> str:
    return " | ".join(_text(name) for name in names)


def _text(name: str) -> str:
    """A string of Lark."""
    return json.dumps(name)
