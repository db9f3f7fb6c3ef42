"""Names of generated SQL, judged by databases that prepare or run it."""

from __future__ import annotations

import itertools
import math
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from structgen.decode.potentials import Hypothesis
from structgen.decode.sampling import AWRS, SMC, sample
from structgen.engine import Vocabulary, compile
from structgen.errors import GenerationError
from structgen.frontends.lark import lark
from structgen.grammar.nodes import Grammar, literal
from structgen.methods.monitors.sql.catalogue import Catalogue, SqlNames, read_catalogue, sql_names
from structgen.models import HashModel
from structgen.testing import check_potential

sqlalchemy = pytest.importorskip("sqlalchemy", reason="the extra 'monitors' is not installed")

GRAMMAR = literal("x")
BYTES = Vocabulary([*(bytes([byte]) for byte in range(256)), b""], eos=[256])

TABLES = """
CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT, email TEXT, city TEXT);
CREATE TABLE orders (id INTEGER PRIMARY KEY, user_id INTEGER, total NUMERIC, "Order Date" TEXT, "select" TEXT);
CREATE TABLE "Order Details" (order_id INTEGER, "unit price" NUMERIC, quantity INTEGER, "say ""hi"" now" TEXT);
CREATE TABLE "Mixed" (one INTEGER, "Two" INTEGER);
CREATE VIEW big AS SELECT id AS big_id, total AS big_total FROM orders WHERE total > 100;
"""


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "shop.db")
    connection.executescript(TABLES)
    yield connection
    connection.close()


@pytest.fixture
def catalogue(database: sqlite3.Connection, tmp_path: Path) -> Catalogue:
    return read_catalogue(f"sqlite:///{tmp_path / 'shop.db'}")


def runs(database: sqlite3.Connection, query: str) -> bool:
    try:
        database.execute(f"EXPLAIN {query}")
    except sqlite3.Error:
        return False
    return True


def scores(rule: SqlNames, text: str) -> list[float]:
    data = text.encode()
    every = [Hypothesis(GRAMMAR, BYTES, tuple(data[:count]), data[:count]) for count in range(len(data) + 1)]
    return [*(rule.prefix(each) for each in every), rule.complete(every[-1])]


def is_allowed(rule: SqlNames, text: str) -> bool:
    found = scores(rule, text)
    assert found == sorted(found, reverse=True), text
    return found[-1] == 0


def test_the_catalogue_is_read(catalogue: Catalogue) -> None:
    assert catalogue.dialect == "sqlite"
    assert set(catalogue.tables) == {"users", "orders", "Order Details", "Mixed", "big"}
    assert catalogue.tables["orders"] == ("id", "user_id", "total", "Order Date", "select")
    assert catalogue.tables["big"] == ("big_id", "big_total")


# One table per template: what stands for the names, and whether the reading is exact there.
TEMPLATES = [
    "SELECT {c} FROM {t}",
    "SELECT {c}, {d} FROM {t}",
    "SELECT {t}.{c} FROM {t}",
    "SELECT {t}.{c}, {d} FROM {t} WHERE {u}.{c} IS NULL",
    "SELECT * FROM {t} WHERE {c} = 1 AND NOT {d} > 'x'",
    "SELECT COUNT(*) AS n, MAX({c}) FROM {t} AS a GROUP BY {d} HAVING COUNT({d}) > 1 ORDER BY n DESC",
    "SELECT {c} AS x FROM {t} ORDER BY {d}, x LIMIT 3",
    "SELECT {c} FROM {t} a WHERE a.{d} NOT IN (1, 2) AND {u}.{c} = 1",
    "select upper_ from {t}",
    "SELECT {c} FROM {t} WHERE {d} IN (SELECT {c} FROM {u})",
    "SELECT {c} FROM {t} WHERE EXISTS (SELECT 1 FROM {u} WHERE {u}.{c} = {t}.{d})",
    "SELECT * FROM {t} JOIN {u} AS b ON b.{c} = {t}.{d}",
    "SELECT * FROM {t} JOIN {u} ON {c} = {d}",
    "SELECT {c} FROM {t} LEFT JOIN {u} AS b ON b.{d} = 1",
    "SELECT * FROM {t}, {u} WHERE {c} = 1",
    "SELECT * FROM (SELECT {c}, 1 AS k FROM {t}) AS s WHERE s.{d} = k",
    "SELECT {c} FROM {t} UNION SELECT {d} FROM {t} ORDER BY {c}",
    "SELECT CASE WHEN {c} > 1 THEN {d} ELSE 0 END FROM {t}",
    "SELECT CAST({c} AS TEXT) || {d} FROM {t}",
    "SELECT -{c} * ({d} + 2), a.* FROM {t} AS a",
    "INSERT INTO {t} ({c}) VALUES (1)",
    "INSERT INTO {t} ({c}, {d}) SELECT {c}, {d} FROM {u}",
    "UPDATE {t} SET {c} = {d} + 1 WHERE {d} > 2",
    "UPDATE {t} SET {c} = 1, {d} = 2",
    "DELETE FROM {t} WHERE {c} = 1 OR {d} BETWEEN 1 AND 2",
    "SELECT {c} /* {x} */ FROM {t} -- {x}\n WHERE {d} = '{x}' ; ",
    "SELECT [{c}], `{d}` FROM [{t}]",
    "SELECT DISTINCT {c} FROM {t} WHERE {d} LIKE '%a''b%'",
    "SELECT COUNT(DISTINCT {c}) FROM {t} WHERE {c} IS NOT NULL AND {d} NOT BETWEEN 1 AND 1.5e-3",
]
COLUMNS = ["id", "NAME", "user_id", "total", "big_id", "quantity", "order_id", "nothing", "tot", "n", "x", "select"]
USED_TABLES = ["users", "Orders", "big", "nowhere", "user"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize("template", TEMPLATES)
def test_what_is_allowed_runs_and_what_runs_is_allowed(
    template: str, joins: bool, database: sqlite3.Connection, catalogue: Catalogue
) -> None:
    """All names in all places agree with SQLite, except that a table's list is blocked which joins would combine."""
    rule = sql_names(catalogue, joins=joins)
    allowed = ran = 0
    for table, other in itertools.product(USED_TABLES, ["users", "orders"]):
        for one, two in itertools.product(COLUMNS, ["id", "name", "total", "big_total", "city", "nope"]):
            query = template.format(t=table, u=other, c=one, d=two, x="it's not --"[5:8])
            works, found = runs(database, query), is_allowed(rule, query)
            # SQLite lets a SELECT list use names of other results, and a column twice in a list.
            twice = one.lower() == two.lower() and template.startswith(("INSERT", "UPDATE"))
            assert works or not found, query
            if works and not found:
                assert twice or not exact(template, query, joins, works), query
            allowed, ran = allowed + found, ran + works
    if ran and (joins or "a.*" not in template):
        assert allowed
    assert allowed < len(USED_TABLES) * 2 * len(COLUMNS) * 6


def exact(template: str, query: str, joins: bool, works: bool) -> bool:
    """Whether the documented reading covers the query, so that it must be allowed."""
    lists_before_joins = not joins and "JOIN" in template and not template.startswith("SELECT *")
    early_alias = not joins and "a.*" in template
    return not (
        lists_before_joins
        or early_alias
        or "GROUP BY n" in query
        or "{c}, {d}) SELECT" in template
        or "MAX(n)" in query
    )


def test_names_in_quotes(database: sqlite3.Connection, catalogue: Catalogue) -> None:
    rule = sql_names(catalogue)
    for query in (
        'SELECT "Order Date", "select" FROM orders',
        'SELECT "order date" FROM "ORDERS"',
        'SELECT "say ""hi"" now", "unit price" FROM "Order Details" WHERE "Order Details".quantity > 1',
        "SELECT [unit price] FROM [order details] AS [d x] WHERE [d x].`unit price` > 1",
        'SELECT one, two FROM mixed WHERE "Two" = "TWO"',
    ):
        assert runs(database, query), query
        assert is_allowed(rule, query), query
    for query in (
        "SELECT [Order Dat] FROM orders",
        "SELECT Order Date FROM orders",
        "SELECT select FROM orders",
        "SELECT [unit price] FROM orders",
        "SELECT `id FROM users",
        "SELECT one FROM [mixed up]",
    ):
        assert not runs(database, query), query
        assert not is_allowed(rule, query), query
    # SQLite reads a text in double quotes that is no name as a string; here it is a name
    assert not is_allowed(rule, 'SELECT "Order Dat" FROM orders')
    assert not is_allowed(rule, 'SELECT "say ""ho"" now" FROM "Order Details"')


def test_tokens_are_blocked_as_soon_as_no_name_begins_so(catalogue: Catalogue) -> None:
    def given_up(rule: SqlNames, text: str) -> str:
        found = scores(rule, text)[:-1]
        assert found[-1] == -math.inf, text
        return text[: found.index(-math.inf)]

    rule = sql_names(catalogue)
    assert given_up(rule, "SELECT xyz") == "SELECT x"
    assert given_up(rule, "SELECT email, big_id") == "SELECT email, b"
    assert given_up(rule, "SELECT total FROM users") == "SELECT total FROM u"
    assert given_up(rule, "SELECT users.total") == "SELECT users.t"
    assert given_up(rule, "SELECT * FROM users AS u WHERE u.total") == "SELECT * FROM users AS u WHERE u.t"
    assert given_up(rule, "SELECT * FROM users AS u WHERE users.id") == "SELECT * FROM users AS u WHERE us"
    assert given_up(rule, "SELECT * FROM users WHERE emails") == "SELECT * FROM users WHERE emails"
    assert given_up(rule, "INSERT INTO orders (total, total)") == "INSERT INTO orders (total, tot"[:-2]
    assert given_up(rule, 'SELECT "Orderz') == 'SELECT "Orderz'
    assert given_up(rule, "PRAGMA x") == "P"
    late = sql_names(catalogue, joins=True)
    assert given_up(late, "SELECT email, total FROM users WHERE ") == "SELECT email, total FROM users WHERE "
    assert is_allowed(late, "SELECT u.email, o.total FROM users AS u JOIN orders AS o ON o.user_id = u.id")
    assert not is_allowed(late, "SELECT u.total, o.total FROM users AS u JOIN orders AS o ON o.user_id = u.id")


def test_other_databases_and_missing_libraries_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dialect:
        name = "oracle"

    class Bind:
        dialect = Dialect()

    class Nothing:
        @staticmethod
        def get_table_names(schema: str | None) -> list[str]:
            return []

        get_view_names = get_table_names

    monkeypatch.setattr(sqlalchemy, "inspect", lambda bind: Nothing())
    with pytest.raises(ValueError, match=r"words must be among .*found select"):
        sql_names(Catalogue("sqlite", {}), words=["SELECT"])
    with pytest.raises(ValueError, match="expected sqlite or postgresql; found oracle"):
        read_catalogue(Bind())
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(GenerationError, match=r"sqlalchemy cannot be imported.*pip install 'structgen-lm\[monitors\]'"):
        read_catalogue("sqlite://")


# rows and samplers


def sql_vocabulary() -> Vocabulary:
    """Bytes, and pieces of SQL as a tokenizer has them."""
    names = [
        "users",
        "orders",
        "id",
        "name",
        "email",
        "city",
        "user_id",
        "total",
        "big",
        "big_id",
        "big_total",
        "Order",
    ]
    pieces = [
        *names,
        *(f" {name}" for name in names),
        "SELECT ",
        " FROM",
        " WHERE ",
        " JOIN",
        " ORDER BY",
        " AS",
        " u",
        "u.",
    ]
    pieces += [
        "ema",
        "il",
        "tot",
        "al FROM ",
        "id, ",
        "users.",
        "orders.id",
        ", na",
        "me FROM us",
        " Details",
        '"',
        ' "Or',
    ]
    return Vocabulary(
        [b"", *(bytes([byte]) for byte in range(256)), *dict.fromkeys(p.encode() for p in pieces)], eos=[0]
    )


QUERIES = lark(
    r"""
    start: "SELECT " column (", " column)~0..2 " FROM " source join? (" WHERE " test)? (" ORDER BY " ref)?
    join: " JOIN " source " ON " test
    column: ref | "MAX(" ref ")" | "COUNT(*)"
    source: NAME (" AS " ALIAS)?
    test: ref (" = " | " > ") (ref | "1")
    ref: NAME | NAME "." NAME
    NAME: /[a-z][a-z_]{1,12}/ | /"[A-Z][A-Za-z ]{1,14}"/
    ALIAS: /[k-p][k-p]/
    """
)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "sampler",
    [
        pytest.param(SMC(3), id="default"),
        pytest.param(SMC(3, proposal=AWRS(mask_after=None)), id="unmasked", marks=pytest.mark.nightly),
    ],
)
def test_every_sampled_query_runs(
    sampler: SMC, database: sqlite3.Connection, catalogue: Catalogue, record_property: Callable[[str, object], None]
) -> None:
    tokens = sql_vocabulary()
    counts = {}
    for name, potentials in (("free", []), ("monitored", [sql_names(catalogue, functions=["max", "count"], words=[])])):
        total = right = 0
        for seed in range(10):
            model = HashModel(tokens, seed=seed)
            found = sample(model, "query", QUERIES, sampler=sampler, potentials=potentials, max_tokens=80, seed=seed)
            for each in found.samples:
                total += 1
                works = runs(database, each.result.text)
                assert works or not potentials, each.result.text
                right += works
        counts[name] = right, total
        record_property(name, f"{right} of {total} queries run")
    assert counts["monitored"][0] == counts["monitored"][1] >= 4, counts
    assert counts["free"][0] < counts["free"][1] / 4, counts


@pytest.mark.parametrize("joins", [False, True])
def test_the_laws_of_potentials_hold(catalogue: Catalogue, joins: bool) -> None:
    constraint = compile(QUERIES, sql_vocabulary())
    check_potential(sql_names(catalogue, joins=joins), constraint, random.Random(7), walks=40, length=40)


def test_rows_leave_out_only_what_is_forbidden(catalogue: Catalogue) -> None:
    tokens = sql_vocabulary()
    rule = sql_names(catalogue)
    out = loose = 0
    for text in (
        "SELECT ",
        "SELECT us",
        "SELECT users.",
        "SELECT email, ",
        "SELECT email FROM",
        "SELECT email FROM ",
        "SELECT email FROM us",
        "SELECT email FROM users",
        "SELECT email FROM users ",
        'SELECT "O',
        'SELECT "Order ',
        "SELECT * FROM users AS u WHERE u.",
        "SELECT * FROM users AS u WHERE ",
        "SELECT * FROM users WHERE id",
        "SELECT MAX(",
        "INSERT INTO orders (total, ",
        "SELECT * FROM users WHERE id IN (",
    ):
        hypothesis = Hypothesis(GRAMMAR, tokens, tuple(tokens.tokenize(text)))
        assert rule.prefix(hypothesis) == 0, text
        row = rule.allowed(hypothesis)
        if row is None:
            assert text.endswith(("users", "FROM", "users "))
            continue
        bits = np.unpackbits(row.view(np.uint8), bitorder="little", count=tokens.size).astype(bool)
        for token in range(1, tokens.size):
            fine = rule.prefix(hypothesis.extended(token)) == 0
            assert bits[token] or not fine, (text, tokens.tokens[token])
            out, loose = out + (not bits[token]), loose + bool(bits[token] and not fine)
        assert bits[0] or rule.complete(hypothesis) == -math.inf, text
    assert out > 1000
    assert loose < out


# PostgreSQL


@pytest.fixture(scope="module")
def postgres() -> Iterator[Any]:
    """An engine on its own server, which runs as another user if this one is root."""
    pytest.importorskip("psycopg", reason="the driver psycopg is not installed")
    folders = [Path(each) for each in sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)]
    path = os.pathsep.join([*map(str, folders), os.environ.get("PATH", "")])
    programs = {name: shutil.which(name, path=path) for name in ("initdb", "pg_ctl")}
    if None in programs.values():
        pytest.skip("no PostgreSQL server is installed: initdb and pg_ctl are not on the path")
    folder = Path(tempfile.mkdtemp(prefix="structgen-pg-", dir="/tmp"))
    owner: dict[str, Any] = {}
    if os.geteuid() == 0:
        owner = {"user": "nobody", "extra_groups": []}
        try:
            shutil.chown(folder, user="nobody")
        except LookupError:
            pytest.skip("PostgreSQL does not run as root, and there is no user nobody")

    def run(program: str, *arguments: str) -> None:
        command = [str(programs[program]), "-D", str(folder / "data"), *arguments]
        subprocess.run(
            command, check=True, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120, **owner
        )

    run("initdb", "-U", "structgen", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
    run("pg_ctl", "-w", "-l", str(folder / "log"), "-o", f"-k {folder} -c listen_addresses= -c fsync=off", "start")
    engine = sqlalchemy.create_engine(f"postgresql+psycopg://structgen@/postgres?host={folder}")
    try:
        with engine.begin() as connection:
            for statement in TABLES.split(";")[:-1]:
                connection.execute(sqlalchemy.text(statement))
        yield engine
    finally:
        engine.dispose()
        run("pg_ctl", "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


def explains(engine: Any, query: str) -> bool:
    with engine.connect() as connection:
        try:
            connection.exec_driver_sql(f"EXPLAIN {query}")
        except sqlalchemy.exc.DBAPIError:
            return False
    return True


PG_TEMPLATES = [
    "SELECT {c} FROM {t} WHERE {d} IS NOT NULL",
    "SELECT {t}.{c}, {d} FROM {t}",
    "SELECT COUNT({c}) FROM {t} AS a WHERE a.{d} IS NULL",
    "SELECT * FROM {t} JOIN users AS b ON b.name IS NULL AND {t}.{c} IS NULL WHERE {d} IS NULL",
    "SELECT * FROM {t}, orders AS o JOIN users AS u ON u.{c} IS NULL",
    "SELECT * FROM (SELECT {c}, 1 AS k FROM {t}) AS s WHERE s.{d} IS NULL OR k = 1",
    "SELECT 1 FROM {t} WHERE EXISTS (SELECT 1 FROM users AS u WHERE u.{c} IS NULL AND {t}.{d} IS NULL)",
    "SELECT {c} FROM {t} ORDER BY {d} DESC NULLS LAST LIMIT 3",
    'SELECT "{c}", {d} FROM "{t}"',
    "UPDATE {t} SET {c} = NULL WHERE {d} IS NULL",
    "DELETE FROM {t} WHERE {c} IS NULL",
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("template", PG_TEMPLATES)
def test_what_is_allowed_runs_in_postgresql_too(template: str, postgres: Any) -> None:
    """Case matters in quotes, derived tables need an alias, and ON sees fewer tables."""
    rule = sql_names(postgres)
    assert rule.catalogue.tables["Mixed"] == ("one", "Two")
    allowed = 0
    for table in ("users", "ORDERS", "Mixed", "orders", "Order Details", "nowhere"):
        for one, two in itertools.product(
            ["id", "NAME", "Two", "one", "user_id", "Order Date", "nope"], ["id", "TOTAL", "one"]
        ):
            query = template.format(t=table, c=one, d=two)
            works, found = explains(postgres, query), is_allowed(rule, query)
            assert works == found, (query, works)
            allowed += found
    assert allowed


def test_sampled_queries_run_in_postgresql(postgres: Any, record_property: Callable[[str, object], None]) -> None:
    grammar: Grammar = lark(
        r"""
        start: "SELECT " ref (", " ref)~0..2 " FROM " source join? (" WHERE " ref " IS NULL")?
        join: " JOIN " source " ON " ref " IS NULL"
        source: NAME (" AS " ALIAS)?
        ref: NAME | NAME "." NAME
        NAME: /[a-z][a-z_]{1,12}/ | /"[A-Z][A-Za-z ]{1,14}"/
        ALIAS: /[k-p][k-p]/
        """
    )
    rule, tokens = sql_names(postgres, functions=[], words=[]), sql_vocabulary()
    total = free = free_total = 0
    for seed in range(10):
        model = HashModel(tokens, seed=seed)
        for each in sample(
            model, "query", grammar, sampler=SMC(3), potentials=[rule], max_tokens=60, seed=seed
        ).samples:
            assert explains(postgres, each.result.text), each.result.text
            total += 1
        for each in sample(model, "query", grammar, sampler=SMC(3), max_tokens=60, seed=seed).samples:
            free, free_total = free + explains(postgres, each.result.text), free_total + 1
    record_property("queries", f"{total} of {total} run; without the catalogue {free} of {free_total}")
    assert total >= 5
    assert free < free_total / 4


@pytest.mark.nightly
@pytest.mark.model
def test_the_embedded_model_writes_queries_that_run(
    database: sqlite3.Connection, catalogue: Catalogue, record_property: Callable[[str, object], None]
) -> None:
    from structgen.models import load_model

    model = load_model()
    counts = {}
    for name, potentials in (("free", []), ("monitored", [sql_names(catalogue)])):
        found = sample(
            model,
            "Write a SQL query for the cities of all customers.",
            QUERIES,
            sampler=SMC(4),
            potentials=potentials,
            max_tokens=32,
        )
        works = [runs(database, each.result.text) for each in found.samples]
        counts[name] = sum(works), len(works)
        record_property(name, f"{sum(works)} of {len(works)} queries run")
    assert counts["monitored"][0] == counts["monitored"][1] > 0, counts
