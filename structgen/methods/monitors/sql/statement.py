"""The state of a SQL statement: its clause, the tables in scope, and the names that may come next.

Reads SELECT (with joins, derived tables, subqueries and compounds), INSERT, UPDATE and DELETE. This is not a parser: it
follows a statement that a grammar allows, and checks its names. States are immutable.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, final

from structgen.methods.monitors.sql.scope import AllowedNames, Expects, NameScope, TableSource

__all__ = ["StatementScope"]

_STATEMENTS: Final = frozenset(("select", "insert", "update", "delete"))
_COMPARISONS: Final = frozenset(("in", "like", "between"))
_JOINS: Final = frozenset(("join", "inner", "left", "right", "full", "cross"))
_COMPOUNDS: Final = frozenset(("union", "intersect", "except"))
_CASE: Final = frozenset(("when", "then", "else", "end"))
_VALUES: Final = frozenset(("null", "true", "false", "end", "asc", "desc", "first", "last"))
_READ_CLAUSES: Final = ("select", "from", "on")
_FEW: Final[dict[str, frozenset[str]]] = {
    "by": frozenset(("by",)),
    "join": frozenset(("join", "outer")),
    "nulls": frozenset(("first", "last")),
    "predicate": frozenset(("not", "null", "true", "false")),
}


@final
@dataclass(frozen=True)
class StatementScope(NameScope):
    """One statement or subquery, up to a position: its transitions by words and signs; ``NameScope`` has the names."""

    parent: StatementScope | None = None

    # queries

    def names(self, *, quoted: bool) -> AllowedNames:
        """The names and words with which an identifier may begin here."""
        expects, words = self.expects, frozenset[str]() if quoted else self._words()
        if expects == "table":
            return AllowedNames(self._tables(), words)
        if expects == "column":
            return AllowedNames(self._target_columns() - self.written)
        if expects == "member":
            return AllowedNames(self._members(self.qualifier))
        if expects == "operand":
            calls = frozenset[str]() if quoted else self.schema.functions
            return AllowedNames(self._operands() | self._qualifiers(), words, calls, free=self._takes_any_qualifier)
        return AllowedNames(words=words, free=self._may_name_table or expects in ("alias", "word"))

    # transitions

    def with_name(self, name: str, *, quoted: bool, following: str) -> StatementScope | None:
        """The scope after an identifier or word, before the character that follows it; None if it is not allowed."""
        word, expects = "" if quoted else name.lower(), self.expects
        if expects == "word":
            return replace(self, expects="after", item=None)
        if word in self._words():
            return None if following == "." else self._with_keyword(word, following)
        key = self.schema.key(name, quoted)
        if expects == "operand" and following == "(":
            called = not quoted and word in self.schema.functions
            return replace(self, calling="call", item=None, fresh=False) if called else None
        if not quoted and not self.schema.plain(key):
            return None
        if following == "(" and not (expects == "table" and self.verb == "insert"):
            return None
        if expects in ("alias", "source"):
            return self._with_alias(key)
        if expects == "operand":
            return self._with_operand(key, following)
        if following == ".":
            return None
        if expects == "table":
            return self._with_table(key) if key in self._tables() else None
        if expects == "column" and key in self._target_columns() - self.written:
            return replace(self, expects="after", written=self.written | {key})
        return self._with_member(key) if expects == "member" else None

    def with_value(self) -> StatementScope | None:
        """The scope after a number, a string or a parameter."""
        if self.expects != "operand":
            return None
        return replace(self, expects="after", item=None, fresh=False)

    def with_sign(self, sign: str) -> StatementScope | None:
        """The scope after a bracket, comma, dot, star or operator."""
        if sign == "(":
            return self._opened()
        if sign == ")":
            return self._closed()
        if sign == ",":
            return self._after_comma()
        if sign == ".":
            return self if self.expects == "member" else None
        if sign == ";":
            ended = None if self.parent else self.finished()
            return None if ended is None else StatementScope(self.schema)
        if sign in (":", "@", "$"):
            return replace(self, expects="word") if self.expects in ("operand", "after", "word") else None
        if sign == "?":
            return self.with_value()
        if sign == "*" and self.expects in ("operand", "member"):
            return self._with_star()
        if self.expects not in ("after", "operand") or (self.expects == "after" and not self._in_expression):
            return None
        return replace(self, expects="operand", item=None, fresh=False)

    def finished(self) -> StatementScope | None:
        """The scope at the end of the statement; None if it may not end here."""
        if self.expects not in ("after", "sorted", "source") or self.brackets:
            return None
        if self.clause in ("insert", "into", "update", "delete") or (self.clause == "set" and not self.written):
            return None
        settled = self._with_settled_source()
        return None if settled is None else settled._resolved()

    # words

    def _words(self) -> frozenset[str]:
        """The words that are not names and are allowed here, in lower case."""
        expects = self.expects
        if expects in _FEW:
            return _FEW[expects]
        if expects == "statement":
            return frozenset(("select", "all")) if self.clause == "compound" else _STATEMENTS
        if expects == "comparison":
            return _COMPARISONS | self.schema.comparisons
        if expects == "table":
            return frozenset(("select",)) if self.brackets[-1:] == ("table",) else frozenset()
        if expects == "operand":
            return self._prefixes()
        if expects in ("after", "sorted", "source"):
            return frozenset(self._following())
        return frozenset()

    def _prefixes(self) -> frozenset[str]:
        """The words that may begin an expression here."""
        if self.clause in ("limit", "offset"):
            return frozenset()
        if not self.fresh:
            return self.schema.prefixes
        inner = self.brackets[-1:]
        more = {(): "distinct", ("(",): "select", ("call",): "distinct", ("case",): "when"}.get(inner)
        return self.schema.prefixes | {more} if more else self.schema.prefixes

    def _following(self) -> Iterator[str]:
        """The words that may follow an expression or a table here."""
        clause, expects = self.clause, self.expects
        if expects == "after" and self._in_expression:
            yield from ("and", "or", "not", "is", *_COMPARISONS, *self.schema.comparisons)
        if self.brackets:
            yield from _CASE if self.brackets[-1] == "case" else ("as",) if self.brackets[-1] == "cast" else ()
            return
        if self.verb == "insert":
            yield from ("into",) if clause == "insert" else ("values", "select") if clause == "into" else ()
        if self.verb in ("update", "delete"):
            first = {"update": "set", "delete": "from"}.get(clause)
            yield from ("where",) if first is None and clause != "where" else (first,) if first else ()
        if self._may_name_table:
            yield "as"
        if expects == "source" and self.verb == "select" and self.sources:
            yield "on"
        if self.verb == "select":
            yield from self._following_in_select()

    def _following_in_select(self) -> Iterator[str]:
        clause = self.clause
        order = ("select", "from", "on", "where", "group", "having", "order", "limit", "offset")
        reached = order.index(clause)
        if clause == "select":
            yield from ("as", "from")
        if clause in ("from", "on"):
            yield from _JOINS
        if clause == "order":
            yield from ("asc", "desc", "nulls")
        if clause == "group":
            yield "having"
        yield from (word for word in ("where", "group", "order", "limit") if order.index(word) > reached)
        if clause == "limit":
            yield "offset"
        if reached < order.index("order"):
            yield from _COMPOUNDS

    def _with_keyword(self, word: str, following: str) -> StatementScope | None:
        if word in _STATEMENTS:
            return self._begun(word)
        if word == "cast":
            return replace(self, calling="cast", item=None, fresh=False) if following == "(" else None
        if word == "as":
            return replace(self, expects="word" if self.brackets else "alias")
        if word == "all":
            return self
        settled = self._with_settled_source() if self.expects == "source" else self
        if settled is None:
            return None
        if word in ("where", "group", "order", "limit", *_COMPOUNDS):
            resolved = settled._resolved()
            if resolved is None:
                return None
            expects: Expects = "by" if word in ("group", "order") else "operand"
            if word in _COMPOUNDS:
                word, expects = "compound", "statement"
            return replace(resolved._with_item(), clause=word, expects=expects, item="", fresh=False)
        return settled._with_other_keyword(word)

    def _with_other_keyword(self, word: str) -> StatementScope | None:
        """The scope after a word that neither ends the part before it nor begins a statement."""
        if word == "case":
            return replace(self, brackets=(*self.brackets, "case"), fresh=True, item=None)
        if word == "end":
            return replace(self, brackets=self.brackets[:-1], expects="after")
        if word == "from":
            return replace(self._with_item(), clause="from", expects="table")
        if word in ("join", "into"):
            return replace(self, expects="table", clause={"join": "from"}.get(word, word))
        if word == "set":
            return replace(self, expects="column", clause="set", written=frozenset())
        if word in ("on", "values", "having", "offset"):
            return replace(self, expects="operand", clause=word)
        if word in _JOINS:
            return replace(self, expects="join")
        if word == "not" and self.expects == "after":
            return replace(self, expects="comparison")
        expects: dict[str, Expects] = {"is": "predicate", "nulls": "nulls", "outer": "join"}
        if word == "not" and self.expects == "predicate":
            return self
        after = expects.get(word, "after" if word in _VALUES else "operand")
        is_sorted = word in ("asc", "desc", "first", "last")
        return replace(
            self,
            expects="sorted" if is_sorted else after,
            item=self.item if word in ("distinct", "by") else None,
            fresh=False,
        )

    def _begun(self, verb: str) -> StatementScope | None:
        """A statement or subquery that begins with ``verb``."""
        schema = self.schema
        if self.expects == "statement" and self.clause == "compound":
            return StatementScope(
                schema, self.parent, verb, verb, "operand", outputs=self.outputs, is_compound=True, fresh=True
            )
        if self.expects == "statement":
            expects: dict[str, Expects] = {"select": "operand", "update": "table"}
            return replace(self, verb=verb, clause=verb, expects=expects.get(verb, "after"), fresh=True)
        if self.verb == "insert" and not self.brackets:
            return StatementScope(schema, None, verb, verb, "operand", fresh=True)
        return StatementScope(schema, self, verb, verb, "operand", fresh=True)

    def _with_alias(self, key: str) -> StatementScope | None:
        if self.expects == "alias" and self.clause == "select":
            return replace(self, expects="after", item=key)
        if self.expects == "source" and not self._may_name_table:
            return None
        return replace(self, table=key, expects="source")._with_settled_source()

    def _with_operand(self, key: str, following: str) -> StatementScope | None:
        if following == ".":
            is_allowed = key in self._qualifiers() or self._takes_any_qualifier
            return replace(self, expects="member", qualifier=key) if is_allowed else None
        if key not in self._operands():
            return None
        if key in self._result_names():
            return replace(self, expects="sorted", fresh=False)
        scope = replace(self, expects="after", item=key if self.item == "" and not self.brackets else None, fresh=False)
        return replace(scope, used=self.used | {key}) if self.clause == "select" else scope

    def _with_member(self, key: str) -> StatementScope | None:
        if key not in self._members(self.qualifier):
            return None
        scope = replace(self, expects="after", item=key if self.item == "" and not self.brackets else None, fresh=False)
        if self.clause == "select" and not self._is_outer(self.qualifier):
            return replace(scope, qualified=self.qualified | {(self.qualifier, key)})
        return scope

    def _with_table(self, key: str) -> StatementScope | None:
        columns = self.schema.tables[key]
        scope = replace(self, table=key, table_columns=columns, expects="source")
        return scope._with_settled_source() if self.verb in ("insert", "update") else scope

    def _with_settled_source(self) -> StatementScope | None:
        """The scope with the last table as a source; None if it cannot be one."""
        if self.table_columns is None:
            return self
        name, columns = self.table, self.table_columns
        if name is None:
            if self.schema.needs_alias:
                return None
            name = ""
        if name and any(source.name == name for source in self.sources):
            return None
        sources = (*self.sources, TableSource(name, columns))
        expects: Expects = "source" if self.verb in ("select", "delete") else "after"
        scope = replace(self, sources=sources, table=None, table_columns=None, expects=expects)
        unambiguous = all(sum(column in source.columns for source in sources) <= 1 for column in self.used)
        return scope if unambiguous and (self.schema.joins or scope._resolved() is not None) else None

    def _resolved(self) -> StatementScope | None:
        """The scope if every column of the SELECT list has its table."""
        if self.verb != "select" or self.clause not in _READ_CLAUSES:
            return self
        if self.star and not self.sources:
            return None
        for column in self.used:
            holders = sum(column in source.columns for source in self.sources)
            if holders != 1 and not (holders == 0 and self._outer_has(column)):
                return None
        by_name = {source.name: source.columns for source in self.sources}
        if any(column != "*" and column not in by_name.get(name, ()) for name, column in self.qualified):
            return None
        return None if any(name not in by_name for name, _ in self.qualified) else self

    # signs

    def _opened(self) -> StatementScope | None:
        if self.expects == "operand":
            return replace(self, brackets=(*self.brackets, self.calling), calling="(", item=None, fresh=True)
        if self.expects == "table" and self.verb == "select":
            return replace(self, brackets=(*self.brackets, "table"))
        if self.expects == "after" and self.clause == "into" and not self.brackets:
            return replace(self, expects="column", brackets=("columns",), written=frozenset())
        return None

    def _closed(self) -> StatementScope | None:
        if not self.brackets:
            ended, parent = self.finished(), self.parent
            return None if ended is None or parent is None else parent._with_subquery(ended._with_item())
        kind = self.brackets[-1]
        if kind in ("table", "case") or self.expects != "after":
            return None
        return replace(self, brackets=self.brackets[:-1], expects="after", item=None, fresh=False)

    def _with_subquery(self, query: StatementScope) -> StatementScope:
        """The scope after the bracket that ends a subquery."""
        scope = replace(self, brackets=self.brackets[:-1], item=None, fresh=False)
        if self.brackets[-1] != "table":
            return replace(scope, expects="after")
        return replace(scope, expects="source", table=None, table_columns=query._result_columns())

    def _after_comma(self) -> StatementScope | None:
        if self.expects == "source" or (self.expects == "after" and self.clause == "on" and not self.brackets):
            settled = self._with_settled_source() if self.verb == "select" else None
            return settled and replace(settled, expects="table", clause="from", reach=len(settled.sources))
        if self.expects not in ("after", "sorted"):
            return None
        if self.brackets:
            if self.brackets[-1] in ("case", "cast"):
                return None
            expects: Expects = "column" if self.brackets[-1] == "columns" else "operand"
            return replace(self, expects=expects, item=None)
        if self.clause in ("where", "having", "limit", "offset", "insert", "into", "update", "delete"):
            return None
        return replace(self._with_item(), expects="column" if self.clause == "set" else "operand", item="")

    def _with_star(self) -> StatementScope | None:
        if self.expects == "operand" and self.brackets:
            is_count = self.brackets[-1] == "call" and self.fresh
            return replace(self, expects="after", item=None, fresh=False) if is_count else None
        if self.clause != "select" or self.brackets or self.item != "":
            return None
        if self.expects == "operand":
            return replace(self, expects="after", star=True, item=None, fresh=False)
        if self._is_outer(self.qualifier):
            return None
        starred = self.qualified | {(self.qualifier, "*")}
        return replace(self, expects="after", qualified=starred, item=None, fresh=False)

    def _with_item(self) -> StatementScope:
        """The scope after one result column."""
        if self.verb != "select" or self.clause != "select" or self.is_compound:
            return self
        return replace(self, outputs=(*self.outputs, self.item or ""), item="")
