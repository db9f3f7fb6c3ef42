"""SQL: questions to a small SQLite database, whose own catalogue makes the grammar; the queries are executed.

Whatever the model writes is a query that SQLite executes: tables and columns exist, only tables that refer to each
other are joined, numbers are compared with numbers and texts with texts that the column has.  Whether the query asks
what the question asks is the model's affair, and a small one often gets that wrong.
"""

import sqlite3
from collections.abc import Generator
from pathlib import Path
from typing import Any

import structgen as sg

SCRIPT = Path(__file__).parent / "support" / "library.sql"
QUESTIONS = [
    "Which books are from the year 2015?",
    "How many books are on each shelf?",
    "Which authors are from Japan?",
]
EXAMPLES = {
    "Which loans have a fine of at least 1?": "SELECT reader, fine FROM loans WHERE fine >= 1",
    "How many loans has each reader?": "SELECT reader, COUNT(*) FROM loans GROUP BY reader",
    "Which authors are from Sweden?": "SELECT name FROM authors WHERE country = 'Sweden'",
}
TERMINALS = r"""
COMPARED: " = " | " <> " | " < " | " <= " | " > " | " >= "
NUMBER: /(0|[1-9][0-9]{0,4})([.][0-9]{1,2})?/
LIMIT: " LIMIT " /[1-9][0-9]?/
"""
# All lists are bounded: SQLite takes at most 2,000 columns, and expressions 1,000 levels deep.
QUERY = r"""
query_{at}: rows_{at} | groups_{at}
rows_{at}: "SELECT " columns_{at} {source} where_{at}? (" ORDER BY " COLUMN_{at} " DESC"?)? LIMIT?
columns_{at}: "*" | AGGREGATE_{at} | COLUMN_{at} (", " COLUMN_{at})~0..2
where_{at}: " WHERE " condition_{at} ((" AND " | " OR ") condition_{at})?
condition_{at}: NUMBER_{at} COMPARED NUMBER | {conditions}
COLUMN_{at}: NUMBER_{at} | TEXT_{at}
AGGREGATE_{at}: "COUNT(*)" | ("AVG(" | "MIN(" | "MAX(") NUMBER_{at} ")"
NUMBER_{at}: {numbers}
TEXT_{at}: {texts}
groups_{at}: {groups}
"""
GROUP = '"SELECT " {column} ", " AGGREGATE_{at} {source} where_{at}? " GROUP BY " {column}'


def open_library() -> sqlite3.Connection:
    """The database, in memory."""
    connection = sqlite3.connect(":memory:")
    connection.executescript(SCRIPT.read_text(encoding="utf-8"))
    return connection


def grammar_of(connection: sqlite3.Connection) -> str:
    """A Lark grammar of queries that a database can execute.

    Its names must need no quotes, and each table must have a column of texts, not all of them NULL, and one of numbers.
    """
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    columns = {table: _columns(connection, table) for table in tables}
    sources = [(f" FROM {table}", columns[table]) for table in tables]
    for table in tables:
        links = connection.execute('SELECT "table", "from", "to" FROM pragma_foreign_key_list(?)', [table])
        for other, ours, theirs in links:
            both = {f"{home}.{name}": values for home in (table, other) for name, values in columns[home].items()}
            sources.append((f" FROM {table} JOIN {other} ON {table}.{ours} = {other}.{theirs}", both))
    rules = [_rules(at, source, held) for at, (source, held) in enumerate(sources)]
    return "start: " + " | ".join(f"query_{at}" for at in range(len(sources))) + TERMINALS + "".join(rules)


def _columns(connection: sqlite3.Connection, table: str) -> dict[str, list[str]]:
    """The columns of a table, each with the texts in it as SQL writes them; none for numbers."""
    columns = {}
    for name, kind in connection.execute("SELECT name, type FROM pragma_table_info(?)", [table]).fetchall():
        texts = connection.execute(f"SELECT DISTINCT quote({name}) FROM {table}") if kind == "TEXT" else ()
        columns[name] = [text for (text,) in texts]
    return columns


def _rules(at: int, source: str, columns: dict[str, list[str]]) -> str:
    source = _one_of([source])
    numbers = [name for name in columns if not columns[name]]
    texts = [name for name in columns if columns[name]]
    conditions = [f'"{name}" (" = " | " <> ") ({_one_of(columns[name])})' for name in texts]
    groups = [GROUP.format(at=at, source=source, column=_one_of([name])) for name in columns]
    return QUERY.format(
        at=at,
        source=source,
        numbers=_one_of(numbers),
        texts=_one_of(texts),
        conditions=" | ".join(conditions),
        groups=" | ".join(groups),
    )


def _one_of(texts: list[str]) -> str:
    return " | ".join('"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' for text in texts)


@sg.program(max_tokens=50)
def query(question: str, schema: str, grammar: sg.Grammar) -> Generator[Any, Any, str]:
    yield sg.program.system(f"You write queries to this SQLite database.\n{schema}")
    for asked, written in EXAMPLES.items():
        yield sg.program.user(asked)
        yield sg.program.assistant(written)
    yield sg.program.user(question)
    return (yield grammar)


if __name__ == "__main__":
    library = open_library()
    grammar = sg.lark(grammar_of(library))
    schema = "\n".join(text for (text,) in library.execute("SELECT sql FROM sqlite_schema"))
    for question in QUESTIONS:
        written = query(question, schema, grammar)
        rows = library.execute(written).fetchall()
        print(f"{question}\n  {written}")
        for row in rows[:5]:
            print("  ", *row, sep=" | ")
        print(f"   ({len(rows)} rows)")
