"""The tasks of ``benchmarks/sampling.py``."""

from __future__ import annotations

import itertools
import re
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from structgen.decode.potentials import potential
from structgen.frontends.json_schema import json_schema
from structgen.frontends.lark import lark
from structgen.frontends.regex import regex

if TYPE_CHECKING:
    from structgen.decode.potentials import Potential
    from structgen.grammar.nodes import Grammar
    from structgen.models.protocol import Prompt

_READING: Final[Any] = {"whitespace": "flexible", "additional": "written"}
"""As the measurements on record: with free white space, and undeclared members as schemas say."""

__all__ = ["ASKED", "MYOPIC", "SHARED", "MyopicTask", "Predicate", "SharedTask", "Task"]

_ROOT: Final = Path(__file__).resolve().parent.parent
_EXAMPLES: Final = _ROOT / "examples"
_GRAMMARS: Final = _ROOT / "grammars"


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be written, and how much of it."""

    name: str
    prompt: Prompt
    grammar: Grammar
    max_tokens: int


@dataclass(frozen=True, slots=True)
class MyopicTask:
    """A small language in which likely prefixes lead to unlikely outputs.

    Attributes:
        members: all of it.
    """

    name: str
    prompt: str
    members: tuple[str, ...]
    max_tokens: int

    @property
    def pattern(self) -> str:
        """The members as a regular expression."""
        return "|".join(re.escape(member).replace(r"\ ", " ").replace(r"\-", "-") for member in self.members)


@dataclass(frozen=True, slots=True)
class SharedTask:
    """A task for both libraries: the same texts are members for both.

    Attributes:
        pattern: the language.
        schema: a JSON Schema with the same language in the peer's reading, which is given that; None if it is given
            the pattern.
    """

    name: str
    prompt: Prompt
    pattern: str
    max_tokens: int
    schema: Mapping[str, Any] | None = None


MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
DATE: Final = rf"(0?[1-9]|[12][0-9]|3[01]) ({'|'.join(MONTHS)}) (19|20)[0-9]{{2}}"
EMAIL: Final = r"[a-z]{2,12}(\.[a-z]{2,12})?@example\.(com|org|net)"


def _shown(question: str, example: str, answer: str) -> list[dict[str, str]]:
    """A chat in which the same was asked and answered once before."""
    return [
        {"role": "user", "content": example},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": question},
    ]


_TABLES: Final = "Tables: customers (id, name, city, country) and orders (id, customer_id, total, placed_on). "

ASKED: Final = (
    Task(
        "JSON Schema: contact",
        _shown(
            "Write a contact card as JSON: Ada Lovelace, 36, of London, ada@example.org, a friend.",
            "Write a contact card as JSON: Alan Turing, 41, of Manchester, alan@example.com, from work.",
            '{"name": "Alan Turing", "age": 41, "email": "alan@example.com", "phone": "+44 161 496 0123", "address": '
            '{"street": "1 Oxford Road", "city": "Manchester", "country": "GB"}, "tags": ["work"]}',
        ),
        json_schema((_EXAMPLES / "contact.schema.json").read_text(encoding="utf-8"), **_READING),
        128,
    ),
    Task(
        "JSON Schema: sentiment",
        _shown(
            'Classify this review as JSON: "The lamp broke after two days and nobody answers my mails."',
            'Classify this review as JSON: "It came a day early, and the fabric is better than I had hoped."',
            '{"label": "positive", "stars": 5, "about": ["delivery", "quality"], "reason": "Quick, and well made."}',
        ),
        json_schema(
            (_EXAMPLES / "sentiment.schema.json").read_text(encoding="utf-8"),
            whitespace="flexible",
            additional="written",
        ),
        96,
    ),
    Task(
        "SQL: SELECT",
        _shown(
            f"{_TABLES}Write the SQL query for the names of the customers from Norway.",
            f"{_TABLES}Write the SQL query for the totals of the orders above 100, the largest first.",
            "SELECT total FROM orders WHERE total > 100 ORDER BY total DESC",
        ),
        lark((_GRAMMARS / "sql_select" / "grammar.lark").read_text(encoding="utf-8")),
        48,
    ),
    Task(
        "regex: date",
        _shown(
            "When was the first iPhone released? Reply with the date alone.",
            "When did Apollo 11 land on the Moon? Reply with the date alone.",
            "20 July 1969",
        ),
        regex(DATE),
        12,
    ),
    Task(
        "regex: e-mail address",
        _shown(
            "Ada Lovelace works at example.com. Reply with her e-mail address alone.",
            "Alan Turing works at example.org. Reply with his e-mail address alone.",
            "alan.turing@example.org",
        ),
        regex(EMAIL),
        16,
    ),
)

MYOPIC: Final = (
    MyopicTask(
        "city",
        "Name one large city in California. Reply with the name of the city alone.",
        ("San Marino", "San Rafael", "Santa Rosa", "Fresno", "Oakland", "Sacramento", "Anaheim", "Long Beach"),
        4,
    ),
    MyopicTask(
        "year",
        "In which year did people first walk on the Moon? Reply with the year alone.",
        tuple(str(year) for year in range(1960, 1975) if year != 1969),
        4,
    ),
    MyopicTask(
        "bits",
        "Reply with five random bits, such as 01101, and nothing else.",
        ("00000", *("1" + "".join(bits) for bits in itertools.product("01", repeat=4))),
        5,
    ),
    MyopicTask(
        "tool",
        "Which tool finds the weather in Paris tomorrow? Reply with the name of one tool alone: get_time, "
        "get_weather_map, search_web or send_mail.",
        ("get_time", "get_weather_map", "search_web", "send_mail"),
        5,
    ),
    MyopicTask(
        "JSON",
        'Where is the Eiffel Tower? Reply in JSON like {"city": "Rome"}.',
        tuple(f'{{"city": "{city}"}}' for city in ("Pau", "Parma", "Perth", "Nice", "London", "Rome")),
        8,
    ),
)

_SPACE: Final = r" *(?:\n *)?"
"""Whitespace in the JSON of genlm-control: blanks, and at most one line break between two other characters."""


def _objects(members: Mapping[str, Sequence[str]]) -> str:
    """Objects with all of these members, in any order, spaced as the peer allows."""
    spelled = {name: f'"{name}"{_SPACE}:{_SPACE}(?:{"|".join(values)}){_SPACE}' for name, values in members.items()}
    orders = (rf",{_SPACE}".join(spelled[name] for name in order) for order in itertools.permutations(members))
    return rf"\{{{_SPACE}(?:{'|'.join(orders)})\}}{_SPACE}"


_SENTIMENTS: Final = ("positive", "negative", "neutral")

SHARED: Final = (
    SharedTask("regex: date", ASKED[3].prompt, DATE, ASKED[3].max_tokens),
    SharedTask("regex: e-mail address", ASKED[4].prompt, EMAIL, ASKED[4].max_tokens),
    SharedTask(
        "JSON: review",
        'Classify this review: "The lamp broke after two days and nobody answers my mails." Reply in JSON like '
        '{"sentiment": "positive", "urgent": false}.',
        _objects({"sentiment": [f'"{each}"' for each in _SENTIMENTS], "urgent": ["true", "false"]}),
        32,
        {
            "type": "object",
            "properties": {"sentiment": {"enum": list(_SENTIMENTS)}, "urgent": {"type": "boolean"}},
            "required": ["sentiment", "urgent"],
            "additionalProperties": False,
        },
    ),
)

_CATALOGUE: Final = {
    "singer": ("singer_id", "name", "country", "age"),
    "stadium": ("stadium_id", "location", "name", "capacity"),
    "concert": ("concert_id", "concert_name", "theme", "year"),
}


class Predicate:
    """Whether a query can run on a database, or begins one that can; each answer takes a millisecond or more.

    SQLite judges complete queries.  Prefixes are compared with its catalogue.

    Args:
        seconds: the least time for an answer; the processor is kept busy.

    Attributes:
        queries: number of evaluations.
    """

    prompt = (
        "The tables are singer (singer_id, name, country, age), stadium (stadium_id, location, name, capacity) and "
        "concert (concert_id, concert_name, theme, year). Write the SQL query for the names of all singers, in one "
        "line, such as: SELECT age FROM singer"
    )
    grammar = regex("SELECT [a-z_]{1,20} FROM [a-z_]{1,20}")
    max_tokens = 12

    def __init__(self, seconds: float) -> None:
        self.queries = 0
        self._seconds = seconds
        self._database = sqlite3.connect(":memory:")
        for table, columns in _CATALOGUE.items():
            self._database.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
        self._queries = [f"SELECT {column} FROM {table}" for table, columns in _CATALOGUE.items() for column in columns]

    def potential(self) -> Potential:
        """The predicate over outputs and their prefixes."""

        @potential
        def runs(text: str) -> bool:
            began = perf_counter()
            try:
                self._database.execute(f"EXPLAIN {text}")
                answer = True
            except sqlite3.Error:
                answer = False
            return self._after(began, answer=answer)

        @runs.early
        def may_run(text: str) -> bool:
            began = perf_counter()
            return self._after(began, answer=any(query.startswith(text) for query in self._queries))

        return may_run

    def _after(self, began: float, *, answer: bool) -> bool:
        self.queries += 1
        while perf_counter() - began < self._seconds:
            pass
        return answer
