"""The tables and columns of a live database: a potential for the names of generated SQL.

>>> engine = sqlalchemy.create_engine("sqlite:///shop.db")                                  # doctest: +SKIP
>>> sample(model, prompt, grammar, potentials=[sql_names(engine)])                          # doctest: +SKIP

For SQLite and PostgreSQL. Install the extra ``monitors`` (``sqlalchemy``, and the driver of the database).
"""

from __future__ import annotations

import importlib
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from structgen.errors import GenerationError, install
from structgen.methods.monitors.bytewise_potential import BytewisePotential, Options, token_index
from structgen.methods.monitors.sql.scope import AllowedNames, Schema
from structgen.methods.monitors.sql.statement import StatementScope

if TYPE_CHECKING:
    from structgen.decode.potentials import Hypothesis

__all__ = ["FUNCTIONS", "WORDS", "Catalogue", "SqlNames", "read_catalogue", "sql_names"]

FUNCTIONS: Final = frozenset(
    ("abs", "avg", "coalesce", "count", "length", "lower", "max", "min", "nullif", "replace", "round", "sum", "trim")
)
"""Functions of both SQLite and PostgreSQL."""

WORDS: Final = frozenset(("not", "null", "true", "false", "case", "exists", "cast"))
"""Words that are not names and may begin an expression."""

_DIALECTS: Final = ("sqlite", "postgresql")
_COMPARISONS: Final = {"sqlite": frozenset(("glob",)), "postgresql": frozenset(("ilike",))}
_MAX_ROWS: Final = 512
_LETTERS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_"
_SPACE: Final = b" \t\n\r\f\v"

_NUMBER: Final = re.compile(rb"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_NUMBER_PREFIX: Final = re.compile(rb"(?:[0-9]+\.?[0-9]*(?:[eE][-+]?[0-9]*)?|\.(?:[0-9]+(?:[eE][-+]?[0-9]*)?)?)")

_BYTES: Final = np.arange(256)
_WORD: Final = np.isin(_BYTES, list(_LETTERS + b"0123456789$")) | (_BYTES >= 0x80)
_DIGIT: Final = np.isin(_BYTES, list(b"0123456789"))
_IS_WORD: Final = frozenset(int(byte) for byte in np.flatnonzero(_WORD))


@final
@dataclass(frozen=True)
class Catalogue:
    """The tables of a database, views included, and their columns.

    Attributes:
        dialect: ``"sqlite"`` or ``"postgresql"``.
        tables: the columns of each table and view, by its name.
        views: the tables that are views; no statement that changes a table may name them.
        reserved: the words that need quotes, in lower case.
    """

    dialect: str
    tables: Mapping[str, tuple[str, ...]]
    views: frozenset[str] = frozenset()
    reserved: frozenset[str] = field(default=frozenset(), repr=False)

    def key(self, name: str, quoted: bool) -> str:  # noqa: FBT001  callers of the public method may pass it by position
        """The key of a name: equal keys are the same name to the database; SQLite ignores case, quoted or not."""
        return name if quoted and self.dialect == "postgresql" else _small(name)

    def is_plain(self, key: str) -> bool:
        """Whether a name with this key may be written without quotes."""
        data = key.encode()
        if not data or (data[0] not in _LETTERS and data[0] < 0x80) or key in self.reserved:
            return False
        return all(byte in _IS_WORD for byte in data) and key == _small(key)


def read_catalogue(bind: Any, *, schema: str | None = None) -> Catalogue:
    """Read the tables of a database.

    Args:
        bind: an engine or connection of SQLAlchemy, or a URL for ``create_engine``.
        schema: the schema of names without one; by default the database's default schema.

    Raises:
        GenerationError: SQLAlchemy is not installed.
        ValueError: the database is neither SQLite nor PostgreSQL.
    """
    try:
        sqlalchemy: Any = importlib.import_module("sqlalchemy")
    except ImportError as error:
        raise GenerationError(
            "sql catalogue",
            "sqlalchemy cannot be imported",
            evidence=str(error),
            remedy=install("monitors"),
        ) from error
    if isinstance(bind, str):
        engine = sqlalchemy.create_engine(bind)
        try:
            return read_catalogue(engine, schema=schema)
        finally:
            engine.dispose()
    inspector = sqlalchemy.inspect(bind)
    dialect = bind.dialect
    if dialect.name not in _DIALECTS:
        raise ValueError(f"sql catalogue: expected {' or '.join(_DIALECTS)}; found {dialect.name}")
    views = frozenset(map(str, inspector.get_view_names(schema=schema)))
    names = [*inspector.get_table_names(schema=schema), *views]
    tables = {
        str(name): tuple(str(column["name"]) for column in inspector.get_columns(name, schema=schema)) for name in names
    }
    return Catalogue(dialect.name, tables, views, frozenset(dialect.identifier_preparer.reserved_words))


def sql_names(
    source: Any, *, joins: bool = False, functions: Iterable[str] = FUNCTIONS, words: Iterable[str] = WORDS
) -> SqlNames:
    """Make a potential that allows only names of the catalogue, where they are in scope.

    FROM, JOIN, INTO and UPDATE take tables; ``name.`` takes columns of that table or alias; WHERE, ON, GROUP BY,
    HAVING, ORDER BY and SET take columns of the tables in scope, unqualified only if exactly one table has the column;
    subqueries also see the scope of outer queries. A SELECT list, before its FROM, takes columns of one table, and FROM
    must then name a table that has them all.

    Blocked, so that no name is unchecked: statements other than SELECT, INSERT, UPDATE and DELETE, WITH, window
    functions, USING, names with a schema, a blank between a function and its bracket or a table and its dot. Only names
    are checked, not syntax, types, or what may be aggregated.

    Args:
        source: a ``Catalogue``, or an argument of ``read_catalogue``.
        joins: whether a SELECT list may have columns of several tables, and qualify them by aliases that come later.
            Then fewer tokens are blocked early, and a list whose columns no join contains can reach a dead end.
        functions: the names of functions that may be called. Leave out functions that the grammar cannot call but
            whose names it can write: a name ``sum`` that no bracket can follow is a dead end.
        words: the words that may begin an expression; the same holds for them.

    Raises:
        ValueError: a word is not in ``WORDS``.
    """
    words = frozenset(word.lower() for word in words)
    other = sorted(words - WORDS)
    if other:
        raise ValueError(f"sql_names: words must be among {', '.join(sorted(WORDS))}; found {', '.join(other)}")
    catalogue = source if isinstance(source, Catalogue) else read_catalogue(source)
    return SqlNames(catalogue, joins=joins, functions=functions, words=words)


class _LexerState(NamedTuple):
    """The state of the lexer.

    Attributes:
        scope: the statement up to the last complete token.
        mode: the kind of the current token: "" between tokens, "word", "number", "-" or "/" (a sign, or the first
            character of "--" or "/*"), "--", "/*", or the sign that opened a string or quoted name.
        start: where the token begins.
        closed: whether the last byte closes a string or quoted name; the same sign again continues it.
    """

    scope: StatementScope
    mode: str = ""
    start: int = 0
    closed: bool = False


@final
class SqlNames(BytewisePotential[_LexerState]):
    """The potential of :func:`sql_names`."""

    def __init__(self, catalogue: Catalogue, *, joins: bool, functions: Iterable[str], words: Iterable[str]) -> None:
        super().__init__()
        self.catalogue = catalogue
        tables = {
            catalogue.key(table, quoted=True): frozenset(catalogue.key(column, quoted=True) for column in columns)
            for table, columns in catalogue.tables.items()
        }
        is_plain = lru_cache(maxsize=None)(catalogue.is_plain)
        schema = Schema(
            tables,
            frozenset(catalogue.key(table, quoted=True) for table in catalogue.tables if table not in catalogue.views),
            catalogue.key,
            is_plain,
            frozenset(name.lower() for name in functions),
            frozenset(word.lower() for word in words),
            joins,
            catalogue.dialect == "postgresql",
            _COMPARISONS[catalogue.dialect],
        )
        self._root = StatementScope(schema)
        self._quotes = {'"': '"'} if catalogue.dialect == "postgresql" else {'"': '"', "`": "`", "[": "]"}
        self._options: OrderedDict[tuple[AllowedNames, bool], Options] = OrderedDict()
        self._rows: OrderedDict[tuple[bytes, AllowedNames, str, bytes], NDArray[np.int32]] = OrderedDict()

    @property
    def name(self) -> str:
        """See ``Potential``."""
        return "sql names"

    def allowed(self, hypothesis: Hypothesis, /) -> NDArray[np.int32] | None:
        """See ``Potential``: at and within names, the tokens that the position allows."""
        state = self._at(hypothesis)
        if state is None or state.mode not in ("", "word", *self._quotes) or state.closed:
            return None
        is_quoted = state.mode in self._quotes
        names = state.scope.names(quoted=is_quoted)
        if names.free:
            return None
        written = hypothesis.data[state.start :] if state.mode else b""
        kind = state.mode or f"start of {state.scope.expects}"
        key = hypothesis.vocabulary.digest, names, kind, written.lower() if not is_quoted else written
        row = self._rows.get(key)
        if row is None:
            row = self._quoted_row(hypothesis, state, written) if is_quoted else self._row(hypothesis, state, written)
            self._rows[key] = row
            if len(self._rows) > _MAX_ROWS:
                self._rows.popitem(last=False)
        return row

    def _begin(self) -> _LexerState:
        """See ``BytewisePotential``."""
        return _LexerState(self._root)

    def _read(self, state: _LexerState, data: bytes, start: int) -> _LexerState | None:
        """See ``BytewisePotential``."""
        for at in range(start, len(data)):
            after = self._after(state, data, at)
            if after is None:
                return None
            state = after
        is_name = state.mode == "word" or state.mode in self._quotes
        return state if not is_name or self._fits(state, data) else None

    def _may_end(self, state: _LexerState, data: bytes) -> bool:
        """See ``BytewisePotential``: the statement must be complete, as far as names go."""
        ended = self._finished(state, data, len(data), "")
        return ended is not None and (ended.scope == self._root or ended.scope.finished() is not None)

    def _after(self, state: _LexerState, data: bytes, at: int) -> _LexerState | None:
        """The state after the byte at ``at``."""
        byte, mode, sign = data[at], state.mode, chr(data[at])
        if mode == "--":
            return _LexerState(state.scope) if sign == "\n" else state
        if mode == "/*":
            return (
                _LexerState(state.scope) if sign == "/" and data[at - 1] == ord("*") and at > state.start + 2 else state
            )
        if mode == "word" and byte in _IS_WORD:
            return state
        if mode == "number" and (byte in _IS_WORD or sign == "." or (sign in "+-" and data[at - 1] in b"eE")):
            return state if _NUMBER_PREFIX.fullmatch(data, state.start, at + 1) else None
        if mode in ("-", "/") and sign == {"-": "-", "/": "*"}[mode]:
            return state._replace(mode=mode + sign)
        if mode == "'" or mode in self._quotes:
            if sign == self._quotes.get(mode, "'") and not (mode == "[" and state.closed):
                return state._replace(closed=not state.closed)
            if not state.closed:
                return state
        ended = self._finished(state, data, at, sign)
        return None if ended is None else self._begun(ended.scope, byte, at)

    def _begun(self, scope: StatementScope, byte: int, at: int) -> _LexerState | None:
        """The state after the first byte of a token."""
        sign = chr(byte)
        if byte in _SPACE:
            return _LexerState(scope)
        if byte in _IS_WORD and (sign not in "0123456789$" or scope.expects == "word"):
            return _LexerState(scope, "word", at)
        if sign in "0123456789'" or (sign == "." and scope.expects != "member"):
            return _LexerState(scope, "'" if sign == "'" else "number", at) if scope.expects == "operand" else None
        if sign in ("-", "/") or sign in self._quotes:
            return _LexerState(scope, sign, at)
        after = scope.with_sign(sign)
        return None if after is None else _LexerState(after)

    def _finished(self, state: _LexerState, data: bytes, end: int, following: str) -> _LexerState | None:
        """The state after a complete token; None if the token is incomplete or not allowed."""
        scope: StatementScope | None = state.scope
        raw = data[state.start : end]
        if state.mode == "word":
            scope = state.scope.with_name(raw.decode("utf-8", "replace"), quoted=False, following=following)
        elif state.mode in self._quotes:
            name = _unquoted(raw, self._quotes[state.mode])
            scope = state.scope.with_name(name, quoted=True, following=following) if state.closed else None
        elif state.mode == "'":
            scope = state.scope.with_value() if state.closed else None
        elif state.mode == "number":
            scope = state.scope.with_value() if _NUMBER.fullmatch(raw) else None
        elif state.mode in ("-", "/"):
            scope = state.scope.with_sign(state.mode)
        elif state.mode == "/*":
            scope = None
        return None if scope is None else _LexerState(scope)

    def _fits(self, state: _LexerState, data: bytes) -> bool:
        """Whether the current name is a prefix of one that the position allows."""
        is_quoted = state.mode in self._quotes
        names = state.scope.names(quoted=is_quoted)
        if names.free:
            return True
        options, raw = self._spelled(names, quoted=is_quoted), data[state.start :]
        if not is_quoted:
            return options.begins(raw.lower())
        close = self._quotes[state.mode]
        written = _unquoted(raw if not state.closed else raw[:-1], close, is_open=True)
        begun = self.catalogue.key(written, quoted=True).encode()
        if not state.closed:
            return options.begins(begun)
        return begun in options or (state.mode != "[" and options.begins(begun + close.encode()))

    def _spelled(self, names: AllowedNames, *, quoted: bool) -> Options:
        """The names as they may be written: in lower case without quotes, or the text between quotes."""
        key = names, quoted
        options = self._options.get(key)
        if options is None:
            plain = self.catalogue.is_plain
            words = [*names.words, *names.calls, *(name for name in names.keys if plain(name))]
            options = self._options[key] = Options(word.encode() for word in (names.keys if quoted else words))
            if len(self._options) > _MAX_ROWS:
                self._options.popitem(last=False)
        return options

    def _row(self, hypothesis: Hypothesis, state: _LexerState, written: bytes) -> NDArray[np.int32]:
        """The mask row at the start of an unquoted name, or within one."""
        scope = state.scope
        options = self._spelled(scope.names(quoted=False), quoted=False)
        index = token_index(hypothesis.vocabulary, fold=True)
        if state.mode:
            begun = written.lower()
            return index.choices(options.after(begun), lambda rest: ~_WORD, ends=begun in options)
        others = ~_WORD | _DIGIT | (ord("$") == _BYTES) if scope.expects == "operand" else ~_WORD
        boundaries = {b"": others & (ord(" ") != _BYTES), b" ": others}
        rests = [b"", b" ", *options.members, *(b" " + option for option in options.members)]
        return index.choices(rests, lambda rest: boundaries.get(rest, ~_WORD), ends=True)

    def _quoted_row(self, hypothesis: Hypothesis, state: _LexerState, written: bytes) -> NDArray[np.int32]:
        """The mask row within a quoted name."""
        close = self._quotes[state.mode]
        options = self._spelled(state.scope.names(quoted=True), quoted=True)
        begun = self.catalogue.key(_unquoted(written, close, is_open=True), quoted=True).encode()
        mark = close.encode()
        rests = [rest.replace(mark, mark * 2) + mark for rest in options.after(begun)]
        index = token_index(hypothesis.vocabulary, fold=self.catalogue.dialect == "sqlite")
        anything = np.ones(256, dtype=np.bool_)
        return index.choices(rests, lambda rest: anything, ends=False)


def _unquoted(raw: bytes, close: str, *, is_open: bool = False) -> str:
    """The text of a quoted name; ``is_open`` if the closing quote is missing."""
    text = raw[1:] if is_open else raw[1:-1]
    return text.decode("utf-8", "replace").replace(close * 2, close)


def _small(name: str) -> str:
    """The name with ASCII letters in lower case: both databases leave other letters unchanged."""
    return name.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")
