"""SELECT statements over a given database: SQLite prepares every string of the grammar."""

from __future__ import annotations

import random
import sqlite3

import pytest
import sqlglot
from grammar_library import BYTES, mutations, walked_member
from sqlglot.optimizer.qualify import qualify

from structgen.engine import compile
from structgen.methods.monitors.sql.catalogue import Catalogue
from structgen.methods.monitors.sql.grammar import select_grammar
from structgen.testing import ReferenceMatcher

TABLES = {
    "users": ("id", "name", "born"),
    "orders": ("id", "user_id", "total"),
    "Order Lines": ("order", "price", 'odd "name"', "é"),
}
SHOP = Catalogue("sqlite", TABLES, reserved=frozenset({"order", "group"}))
JOINS = [("users", "orders"), ("users", "orders", "Order Lines")]


@pytest.fixture(scope="module")
def database() -> sqlite3.Connection:
    made = sqlite3.connect(":memory:")
    for table, columns in TABLES.items():
        made.execute(f"CREATE TABLE {quoted(table)} ({', '.join(map(quoted, columns))})")
    return made


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def prepares(database: sqlite3.Connection, statement: str) -> bool:
    try:
        database.execute(f"EXPLAIN {statement}")
    except sqlite3.OperationalError:
        return False
    return True


@pytest.mark.parametrize("count", [150, pytest.param(3000, marks=pytest.mark.nightly)])
def test_members_are_prepared(database: sqlite3.Connection, count: int) -> None:
    """SQLite prepares the results of random walks, and sqlglot finds the table of every column."""
    constraint = compile(select_grammar(SHOP, joins=JOINS), BYTES)
    rng = random.Random(4)
    joined = 0
    for _ in range(count):
        statement = walked_member(constraint, rng, rng.randint(20, 250))
        database.execute(f"EXPLAIN {statement}")
        joined += " JOIN " in statement
        qualify(
            sqlglot.parse_one(statement, read="sqlite"),
            dialect="sqlite",
            schema={quoted(table): {quoted(column): "TEXT" for column in columns} for table, columns in TABLES.items()},
            validate_qualify_columns=False,
        )
    assert joined > count // 40  # 4 % of these walks have a join


def test_spoilt_statements(database: sqlite3.Connection) -> None:
    """SQLite prepares every accepted statement with a changed character."""
    constraint = compile(select_grammar(SHOP, joins=JOINS), BYTES)
    rng = random.Random(5)
    bases = [
        "SELECT name, users.born FROM users WHERE id > 3 ORDER BY born DESC LIMIT 5",
        'SELECT users.name, COUNT(*) AS "n" FROM users JOIN orders ON users.id = orders.user_id GROUP BY users.name',
        'SELECT "order", SUM("odd ""name""") FROM "Order Lines" GROUP BY "order" HAVING MAX(é) IS NOT NULL',
    ]
    taken = 0
    for base in bases:
        assert prepares(database, base)
        for spoilt in [base, *mutations(rng, base, "abdeimnorstu_.\"'(), 019*", 300)]:
            matcher = constraint.matcher()
            data = spoilt.encode()
            if matcher.accept_bytes(data) == len(data) and matcher.is_accepting:
                taken += 1
                assert prepares(database, spoilt), spoilt
            else:
                assert spoilt != base
    assert taken > 10


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT total FROM ^users",
        "SELECT user_id FROM ^users",
        "SELECT n^othing FROM users",
        "SELECT * FROM ^clients",
        "SELECT orders.total FROM users ^WHERE id = 1",  # a join with orders may follow
        "SELECT users.id FROM users JOIN orders ON orders.^born = 1",
        "SELECT users.id FROM ^orders JOIN users ON",
        "SELECT COUNT(*) FROM users WHERE CO^UNT(*) > 1",
        "SELECT order^ FROM",  # a word of SQL; orders might follow
    ],
)
def test_where_a_wrong_name_ends(statement: str) -> None:
    """The text is refused at the first byte that no name of the catalogue has, by the reference implementation."""
    matcher = ReferenceMatcher(select_grammar(SHOP, joins=JOINS))
    read, wrong, rest = statement.partition("^")
    assert wrong
    assert matcher.accept_bytes((read + rest).encode()) == len(read)


@pytest.mark.parametrize("join", [("users",), ("users", "users"), ("users", "clients"), "users"])
def test_wrong_joins(join: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="two or more different tables"):
        select_grammar(SHOP, joins=[join])


def test_no_tables() -> None:
    with pytest.raises(ValueError, match="no table"):
        select_grammar(Catalogue("sqlite", {"empty": ()}))
