"""SELECT statements: SQLite's own parser and ``sqlglot``, which also builds the documents."""

from __future__ import annotations

import random
import re
import sqlite3
from collections.abc import Iterator

import sqlglot
from checked_language import Language
from sqlglot import exp

TABLES = {"users": ["id", "name", "age"], "orders": ["id", "user_id", "total", "note"]}


def problem(text: str) -> str | None:
    # In quotes any word can be a name, even a keyword; SQLite parses a whole statement before it looks for its tables.
    quoted = re.sub(r"('(?:[^']|'')*')|\b([a-z]\w*)", lambda found: found[1] or f'"{found[2]}"', text, flags=re.ASCII)
    try:
        sqlite3.connect(":memory:").execute(f"EXPLAIN {quoted}")
    except sqlite3.Error as error:
        if re.search("syntax error|incomplete input|unrecognized token|misuse|wrong number of arguments", str(error)):
            return str(error)
    try:
        sqlglot.parse_one(quoted, read="sqlite")
    except sqlglot.errors.SqlglotError as error:
        return str(error)
    return None


def value(rng: random.Random, names: list[str], depth: int) -> exp.Expression:
    kind = rng.randrange(7 if depth else 3)
    if kind == 0:
        return exp.Literal.number(rng.choice(("0", "12", "3.5")))
    if kind == 1:
        return exp.Literal.string(rng.choice(("a", "it's", "%é%")))
    if kind == 2:
        return exp.column(rng.choice(names))
    if kind == 3:
        return exp.Lower(this=value(rng, names, depth - 1))
    if kind == 4:
        return exp.Coalesce(this=value(rng, names, 0), expressions=[value(rng, names, 0)])
    operator = rng.choice((exp.Add, exp.Sub, exp.Mul, exp.Div))
    made = operator(this=value(rng, names, depth - 1), expression=value(rng, names, depth - 1))
    if isinstance(made, exp.Div):  # divide as SQLite does, so that nothing is converted
        made.set("typed", True)
        made.set("safe", True)
    return exp.paren(made)


def condition(rng: random.Random, names: list[str], depth: int) -> exp.Expression:
    left = value(rng, names, 1)
    kind = rng.randrange(7 if depth else 5)
    if kind == 0:
        return exp.Is(this=left, expression=exp.null())
    if kind == 1:
        return exp.Between(this=left, low=value(rng, names, 0), high=value(rng, names, 0))
    if kind == 2:
        return exp.In(this=left, expressions=[value(rng, names, 0) for _ in range(rng.randint(1, 3))])
    if kind < 5:
        return rng.choice((exp.EQ, exp.NEQ, exp.LT, exp.GTE, exp.Like))(this=left, expression=value(rng, names, 1))
    both = condition(rng, names, depth - 1), condition(rng, names, depth - 1)
    return exp.paren(rng.choice((exp.and_, exp.or_))(*both))


def statement(rng: random.Random) -> exp.Select:
    table = rng.choice(sorted(TABLES))
    names = TABLES[table]
    query = exp.select(*(value(rng, names, 2) for _ in range(rng.randint(1, 3)))).from_(table)
    if rng.random() < 0.5:
        query = query.where(condition(rng, names, 2))
    if rng.random() < 0.3:
        query = query.select(exp.alias_(exp.Max(this=exp.column(names[0])), "most")).group_by(names[1])
        query = query.having(exp.GT(this=exp.Count(this=exp.Star()), expression=exp.Literal.number("1")))
    if rng.random() < 0.4:
        is_desc = rng.random() < 0.5  # sort NULL as SQLite does, so that nothing is written about it
        query = query.order_by(exp.Ordered(this=exp.column(names[0]), desc=is_desc, nulls_first=not is_desc))
    return query.limit(rng.randint(1, 50)) if rng.random() < 0.4 else query


def documents(rng: random.Random) -> Iterator[str]:
    while True:
        query = statement(rng)
        if rng.random() < 0.3:
            query = (
                exp.select("u.name", "o.total")
                .from_("users AS u")
                .join("orders AS o", on="u.id = o.user_id", join_type=rng.choice(("", "left")))
            )
        yield query.sql(dialect="sqlite")


LANGUAGE = Language(problem, documents, alphabet="'\"();-")
